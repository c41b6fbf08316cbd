//! The loaded kernels of this process: one table per context, shared by every [`crate::Device`].
//!
//! A table is keyed by the context's id, not by its address, which the driver reuses. Kernels stay loaded as long as
//! their context lives: launches and captured graphs may still use them when a `Device` is dropped. When a context
//! dies its kernels die with it, and its table is dropped, without a call into the driver, when a context with
//! another id appears at the same address.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::catalog::Entry;
use crate::driver::Function;
use crate::error::{Error, Result};

static TABLES: RwLock<Vec<Arc<Table>>> = RwLock::new(Vec::new());

/// A context, as far as its kernels are concerned.
#[derive(Clone, Copy)]
pub(crate) struct Owner {
    /// Number of the context.
    pub(crate) id: u64,
    /// Address of the context. A number, because the context may be dead when it is compared.
    pub(crate) address: usize,
    /// Ordinal of the context's GPU.
    pub(crate) device: i32,
}

/// The kernels of one catalogue in one context.
struct Table {
    owner: Owner,
    catalog: &'static [Entry],
    /// One per entry of the catalogue; null until it is loaded.
    functions: Box<[AtomicPtr<c_void>]>,
    /// Held while a kernel is loaded, so that none is loaded twice.
    loading: Mutex<()>,
}

impl Table {
    fn new(owner: Owner, catalog: &'static [Entry]) -> Self {
        let functions = catalog.iter().map(|_| AtomicPtr::default()).collect();
        Table { owner, catalog, functions, loading: Mutex::new(()) }
    }

    fn get(&self, index: usize) -> Option<Function> {
        let function = self.functions.get(index)?.load(Ordering::Acquire);
        (!function.is_null()).then_some(function)
    }

    fn is_for(&self, context_id: u64, catalog: &'static [Entry]) -> bool {
        self.owner.id == context_id && ptr::eq(self.catalog, catalog)
    }
}

/// The kernel at `index` of `catalog` in a context, if it is loaded. Allocates nothing; takes a read lock that is
/// contended only in the moment in which a context's table is added.
///
/// # Errors
/// [`Error::WrongDevice`] when the context is known and belongs to another GPU than `device`.
pub(crate) fn find(context_id: u64, device: i32, catalog: &'static [Entry], index: usize) -> Result<Option<Function>> {
    let tables = TABLES.read().unwrap_or_else(PoisonError::into_inner);
    match tables.iter().find(|table| table.is_for(context_id, catalog)) {
        Some(table) if table.owner.device != device => Err(Error::WrongDevice { context: table.owner.device, device }),
        Some(table) => Ok(table.get(index)),
        None => Ok(None),
    }
}

/// The same kernel, loaded by `load` when it is not there yet. Loading one kernel blocks loading another into the
/// same context, and no launch.
///
/// # Errors
/// Those of `load`; the next call tries again.
pub(crate) fn find_or_load(
    owner: Owner,
    catalog: &'static [Entry],
    index: usize,
    load: impl FnOnce() -> Result<Function>,
) -> Result<Function> {
    let table = table_of(owner, catalog);
    let _loading = table.loading.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(function) = table.get(index) {
        return Ok(function);
    }
    let function = load()?;
    if let Some(place) = table.functions.get(index) {
        place.store(function, Ordering::Release);
    }
    Ok(function)
}

fn table_of(owner: Owner, catalog: &'static [Entry]) -> Arc<Table> {
    let mut tables = TABLES.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(table) = tables.iter().find(|table| table.is_for(owner.id, catalog)) {
        return Arc::clone(table);
    }
    tables.retain(|table| table.owner.address != owner.address || table.owner.id == owner.id);
    let table = Arc::new(Table::new(owner, catalog));
    tables.push(Arc::clone(&table));
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::DriverError;

    /// A catalogue of its own for each test: tables are shared by the whole process.
    fn one_kernel() -> &'static [Entry] {
        use crate::catalog::{Group, MaskSupport};
        use crate::shape::DType;
        Box::leak(Box::new([Entry {
            name: "test",
            family: "test",
            dtype: DType::F32,
            head_dim: 64,
            v_head_dim: 64,
            group: Group::Any,
            mask: MaskSupport::Any,
            copy_bytes: 4,
            block_q: 64,
            block_kv: 64,
            threads: 128,
            shared_bytes: 0,
            blocks_per_sm: 1,
            schedule: crate::catalog::Schedule::Grid,
            models: "",
            cubins: &[],
            ptx: None,
        }]))
    }

    fn handle(number: usize) -> Function {
        ptr::without_provenance_mut(number)
    }

    fn count(catalog: &'static [Entry]) -> usize {
        let tables = TABLES.read().unwrap_or_else(PoisonError::into_inner);
        tables.iter().filter(|table| ptr::eq(table.catalog, catalog)).count()
    }

    #[test]
    fn loads_once_per_context() {
        let catalog = one_kernel();
        let [first, second] = [101, 102].map(|id| Owner { id, address: id as usize, device: 0 });
        assert_eq!(find(first.id, 0, catalog, 0), Ok(None));
        assert_eq!(find_or_load(first, catalog, 0, || Ok(handle(1))), Ok(handle(1)));
        assert_eq!(find_or_load(first, catalog, 0, || panic!("loaded twice")), Ok(handle(1)));
        assert_eq!(find(first.id, 0, catalog, 0), Ok(Some(handle(1))));
        assert_eq!(find(second.id, 0, catalog, 0), Ok(None));
        assert_eq!(find_or_load(second, catalog, 0, || Ok(handle(2))), Ok(handle(2)));
        assert_eq!(find(first.id, 0, catalog, 0), Ok(Some(handle(1))));
    }

    #[test]
    fn a_context_at_the_address_of_a_dead_one_starts_empty() {
        let catalog = one_kernel();
        let (dead, fresh) = (Owner { id: 201, address: 0x201, device: 0 }, Owner { id: 202, address: 0x201, device: 0 });
        assert_eq!(find_or_load(dead, catalog, 0, || Ok(handle(1))), Ok(handle(1)));
        assert_eq!(find(fresh.id, 0, catalog, 0), Ok(None));
        assert_eq!(find_or_load(fresh, catalog, 0, || Ok(handle(2))), Ok(handle(2)));
        assert_eq!(count(catalog), 1, "the dead context's table is gone");
    }

    #[test]
    fn a_failure_is_not_remembered() {
        let catalog = one_kernel();
        let owner = Owner { id: 301, address: 0x301, device: 0 };
        let source = DriverError { code: 2, name: "", description: "" };
        let failure = Error::Load { kernel: "test", source };
        assert_eq!(find_or_load(owner, catalog, 0, || Err(failure.clone())), Err(failure));
        assert_eq!(find_or_load(owner, catalog, 0, || Ok(handle(1))), Ok(handle(1)));
    }

    #[test]
    fn a_context_of_another_gpu_is_refused() {
        let catalog = one_kernel();
        let owner = Owner { id: 401, address: 0x401, device: 1 };
        assert_eq!(find_or_load(owner, catalog, 0, || Ok(handle(1))), Ok(handle(1)));
        assert_eq!(find(owner.id, 0, catalog, 0), Err(Error::WrongDevice { context: 1, device: 0 }));
    }

    #[test]
    fn threads_load_a_kernel_once() {
        let catalog = one_kernel();
        let owner = Owner { id: 501, address: 0x501, device: 0 };
        let loads = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let load = || Ok(handle(loads.fetch_add(1, Ordering::Relaxed) + 1));
                    assert_eq!(find_or_load(owner, catalog, 0, load), Ok(handle(1)));
                });
            }
        });
        assert_eq!(loads.into_inner(), 1);
    }
}
