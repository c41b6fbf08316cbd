//! Starts a kernel: checks addresses, has the kernel chosen and loaded, launches it.

use cudarc::driver::sys::CUstream;
use cudarc::driver::{CudaStream, CudaViewMut, DevicePtrMut};

use crate::arguments::Arguments;
use crate::catalog::Entry;
use crate::device::Device;
use crate::dispatch::{Alignment, Choice};
use crate::driver::{Current, Launch, Stream};
use crate::error::{Error, Result, RowStart};
use crate::layout::Region;
use crate::problem::Problem;
use crate::shape::{DType, Operand};
use crate::slices::{Element, Readable, Writable, check_slice};

/// Device addresses of a problem's tensors: of element `[0, 0, 0, 0]` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointers {
    /// Queries.
    pub q: u64,
    /// Keys.
    pub k: u64,
    /// Values.
    pub v: u64,
    /// Output.
    pub o: u64,
    /// Log-sum-exp, for a problem that wants it.
    pub lse: Option<u64>,
}

impl Pointers {
    /// The address of a tensor; 0 for an LSE that is not wanted.
    pub(crate) fn address(&self, operand: Operand) -> u64 {
        match operand {
            Operand::Q => self.q,
            Operand::K => self.k,
            Operand::V => self.v,
            Operand::O => self.o,
            Operand::Lse => self.lse.unwrap_or(0),
        }
    }

    /// Where a tensor lies.
    fn region(&self, problem: &Problem, operand: Operand) -> Result<Region> {
        match self.address(operand) {
            0 => Err(Error::NullPointer { operand }),
            address => problem.region(operand).at(address).ok_or(Error::AddressOverflow { operand, address }),
        }
    }

    /// Checks all that the addresses alone tell; [`Alignment`] is left to dispatch.
    fn check(&self, problem: &Problem) -> Result<()> {
        if problem.wants_lse() != self.lse.is_some() {
            return Err(Error::LseMismatch { wanted: problem.wants_lse() });
        }
        let placed = |operand| self.region(problem, operand).map(|region| (operand, region));
        let [q, k, v, o] = [placed(Operand::Q)?, placed(Operand::K)?, placed(Operand::V)?, placed(Operand::O)?];
        check_apart(&o, &[q, k, v])?;
        if let Some(address) = self.lse {
            if address % u64::from(DType::F32.bytes()) != 0 {
                let (part, required) = (RowStart::Address, DType::F32.bytes());
                return Err(Error::Misaligned { operand: Operand::Lse, part, bytes: address, required });
            }
            check_apart(&placed(Operand::Lse)?, &[q, k, v, o])?;
        }
        Ok(())
    }
}

fn check_apart(output: &(Operand, Region), others: &[(Operand, Region)]) -> Result<()> {
    match others.iter().find(|other| output.1.may_overlap(&other.1)) {
        Some(&(other, _)) => Err(Error::Overlap { output: output.0, other }),
        None => Ok(()),
    }
}

/// What was started. Its text says which kernel ran and why.
#[derive(Clone, Copy, Debug)]
pub struct Launched {
    /// The kernel and its code.
    pub choice: Choice,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Blocks of a cluster, which split the keys of a tile or take neighbouring tiles together; 1 where each takes its own.
    pub cluster: u32,
    /// Whether the kernel may start while the one before it in the stream still runs: where
    /// [`Device::with_programmatic_launch`] asked for it and the kernel takes tensor maps.
    pub programmatic: bool,
}

impl std::fmt::Display for Launched {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [x, y, z] = self.grid;
        write!(f, "{}; {x} x {y} x {z} blocks", self.choice)?;
        if self.cluster > 1 {
            write!(f, " in clusters of {}", self.cluster)?;
        }
        if self.programmatic { write!(f, ", launched programmatically") } else { Ok(()) }
    }
}

impl Device {
    /// Computes a problem on tensors that are given by address: for engines with their own memory.
    ///
    /// The tensors are as [`Problem`] says: q and o `[batch, q_len, q_heads, head_dim]`, k and v
    /// `[batch, kv_len, kv_heads, head_dim]`, strides in elements, the LSE f32 `[batch, q_heads, q_len]`. Inputs may
    /// overlap each other; o may interleave with them in one buffer (columns of the same packed rows) but share no element.
    ///
    /// Inputs are finite. A row that meets an infinity or NaN in q, k or v, be it of a key that its mask hides, is unspecified;
    /// elements beyond the tensors, such as unused slots of a cache, may hold anything.
    ///
    /// Asynchronous: the kernel is queued on `stream`, nothing is waited for. It starts when what was queued before it has ended,
    /// unless [`Device::with_programmatic_launch`] lets it set itself up earlier. The kernel runs in the stream's context,
    /// which must belong to this GPU and need not be current. A kernel that is not loaded in that context yet is loaded
    /// first; otherwise nothing is allocated, and the launch can be captured into a graph.
    ///
    /// # Safety
    /// - `stream` is alive, or it is a default stream: null, `CU_STREAM_LEGACY` or `CU_STREAM_PER_THREAD`.
    /// - From every address on, [`Problem::span_bytes`] of device memory can be accessed in the stream's context, until
    ///   the kernel has run.
    /// - Meanwhile nothing writes the inputs, and nothing accesses o and the LSE.
    ///
    /// # Errors
    /// [`Error::LseMismatch`], [`Error::NullPointer`], [`Error::AddressOverflow`], [`Error::Overlap`]; those of
    /// [`crate::dispatch`]; [`Error::NoContext`], [`Error::WrongDevice`], [`Error::NotLoaded`], [`Error::Load`],
    /// [`Error::Jit`]; [`Error::Driver`], which may stem from work that was launched earlier.
    pub unsafe fn launch(&self, problem: &Problem, pointers: Pointers, stream: CUstream) -> Result<Launched> {
        let stream = stream.cast();
        // SAFETY: the stream is alive by this function's contract.
        let current = unsafe { self.driver.enter_stream(stream) }?;
        // SAFETY: this function's contract is that of `launch_in`; the stream's context was entered above.
        unsafe { self.launch_in(&current, problem, pointers, stream) }
    }

    /// Computes a problem on slices or views of cudarc, whose elements are f32, `half::f16` or `half::bf16` as the
    /// problem says. Element `[0, 0, 0, 0]` of a tensor is the first one of its slice.
    ///
    /// Asynchronous: the kernel is queued on `stream`, nothing is waited for. Where cudarc tracks events, the stream
    /// waits for earlier writers of the inputs and earlier users of the outputs, and the kernel is recorded with them.
    /// Under capture use slices that were made with event tracking disabled: a captured stream cannot wait for an event
    /// of an earlier time.
    ///
    /// ```no_run
    /// # use attnpack::{DType, Device, Mask, Problem, Shape};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let device = Device::new(0)?;
    /// # let stream = device.context().ok_or("no context")?.default_stream();
    /// let shape = Shape { batch: 1, q_len: 64, kv_len: 64, q_heads: 8, kv_heads: 2, head_dim: 64 };
    /// let problem = Problem::prefill(DType::F32, shape).mask(Mask::Causal).with_lse().build()?;
    /// let (q, kv) = (stream.alloc_zeros::<f32>(64 * 8 * 64)?, stream.alloc_zeros::<f32>(2 * 64 * 2 * 64)?);
    /// let (k, v) = kv.split_at(64 * 2 * 64);
    /// let (mut o, mut lse) = (stream.alloc_zeros::<f32>(64 * 8 * 64)?, stream.alloc_zeros::<f32>(8 * 64)?);
    /// device.prefill(&stream, &problem, &q, &k, &v, &mut o, Some(&mut lse.as_view_mut()))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::ElementType`], [`Error::TooShort`], [`Error::ForeignSlice`], and those of [`Device::launch`].
    #[allow(clippy::too_many_arguments, reason = "stream, problem, then the tensors in the order of every attention library")]
    pub fn prefill<T: Element>(
        &self,
        stream: &CudaStream,
        problem: &Problem,
        q: &impl Readable<T>,
        k: &impl Readable<T>,
        v: &impl Readable<T>,
        o: &mut impl Writable<T>,
        lse: Option<&mut CudaViewMut<'_, f32>>,
    ) -> Result<Launched> {
        if problem.dtype() != T::DTYPE {
            return Err(Error::ElementType { problem: problem.dtype(), slices: T::DTYPE });
        }
        check_slice(stream, problem, Operand::Q, q)?;
        check_slice(stream, problem, Operand::K, k)?;
        check_slice(stream, problem, Operand::V, v)?;
        check_slice(stream, problem, Operand::O, o)?;
        if let Some(lse) = &lse {
            check_slice(stream, problem, Operand::Lse, *lse)?;
        }
        // The second of each pair records the use when it is dropped: at the end, after the launch.
        let (q, _q_read) = q.device_ptr(stream);
        let (k, _k_read) = k.device_ptr(stream);
        let (v, _v_read) = v.device_ptr(stream);
        let (o, _o_written) = o.device_ptr_mut(stream);
        let (lse, _lse_written) = lse.map(|lse| lse.device_ptr_mut(stream)).unzip();
        // A wait that failed above was put down in the context.
        stream.context().check_err().map_err(|error| self.driver.failed("cuStreamWaitEvent", error))?;

        // SAFETY: `stream` keeps its context alive.
        let current = unsafe { self.driver.enter(stream.context().cu_ctx().cast()) }?;
        let pointers = Pointers { q, k, v, o, lse };
        // SAFETY: `Readable` and `Writable` are implemented by cudarc's slices and views only, so that the addresses
        // are theirs; `check_slice` compared their lengths and contexts. That nothing else accesses them meanwhile is
        // cudarc's promise for borrowed slices: `device_ptr` and `device_ptr_mut` order the stream after other users,
        // and their guards order later users, freeing included, after the kernel.
        unsafe { self.launch_in(&current, problem, pointers, stream.cu_stream().cast()) }
    }

    /// # Safety
    /// That of [`Device::launch`], and `current` is the stream's context.
    unsafe fn launch_in(&self, current: &Current, problem: &Problem, pointers: Pointers, stream: Stream) -> Result<Launched> {
        pointers.check(problem)?;
        let (choice, grid) = self.choose(problem, Alignment::of(problem, &pointers))?;
        let function = match self.loaded(current, &choice)? {
            Some(function) => function,
            // SAFETY: the stream is alive and of this context by this function's contract.
            None if unsafe { current.is_capturing(stream) }? => return Err(Error::NotLoaded { kernel: choice.entry.name }),
            None => self.load(current, &choice)?,
        };
        let multiprocessors = self.capability().multiprocessors;
        let arguments = Arguments::new(self.driver, problem, &pointers, &choice, &grid, multiprocessors)?;
        let Entry { threads, shared_bytes, blocks_per_sm, .. } = *choice.entry;
        let (cluster, balances_load) = (grid.cluster(), grid.balances_load(blocks_per_sm, multiprocessors));
        let grid = grid.dims(multiprocessors);
        let programmatic = self.programmatic_launch() && awaits_prerequisites(choice.entry);
        let launch = Launch { function, grid, cluster, threads, shared_bytes, balances_load, programmatic };
        // SAFETY: the function was loaded into `current`, and its entry takes these parameters: it is one of
        // `self.catalog`. It accesses what the problem spans from these addresses on, which this function's contract
        // makes accessible; `dispatch` chose it for their alignment, and `check` found the outputs apart. It waits if it must:
        // `awaits_prerequisites`.
        unsafe { current.launch(&launch, stream, arguments.address()) }?;
        Ok(Launched { choice, grid, cluster, programmatic })
    }
}

/// Whether a kernel waits for the grid before it by itself (`griddepcontrol.wait`), before it accesses any tensor: those that
/// take tensor maps do, which a test of the generator checks for the packaged ones and [`Device::with_catalog`] demands.
fn awaits_prerequisites(entry: &Entry) -> bool {
    entry.schedule.boxes().is_some()
}
