//! A GPU and the kernels that are loaded on it.

use std::ffi::CString;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::CudaContext;

use crate::catalog::{Entry, catalog};
use crate::dispatch::{Alignment, Capability, Choice, Code, Policy, reachable, select};
use crate::driver::{Attribute, Current, Driver, Function, Image};
use crate::error::{Error, Result};
use crate::functions::{self, Owner};
use crate::grid::Grid;
use crate::jit;
use crate::problem::Problem;

/// A GPU that attention can run on.
///
/// Its existence proves that the driver was found and that the GPU's capability was asked for. It is cheap to make and to
/// clone; kernels are loaded on their first use in a context and then kept, for all `Device`s of the process, until the
/// context is destroyed. A launch works in whatever context its stream belongs to, as long as that is a context of this
/// GPU. All methods can be called from several threads at a time.
#[derive(Clone)]
pub struct Device {
    pub(crate) driver: &'static Driver,
    ordinal: i32,
    capability: Capability,
    policy: Policy,
    programmatic_launch: bool,
    catalog: &'static [Entry],
    /// The context that [`Device::warm_up`] loads into; `None`: the one that is current.
    home: Option<Home>,
}

/// A share in a context that leaves the thread's current context alone when it is given up.
#[derive(Clone)]
struct Home {
    driver: &'static Driver,
    /// Never `None` before the drop.
    context: Option<Arc<CudaContext>>,
}

impl Drop for Home {
    fn drop(&mut self) {
        let context = self.context.take();
        self.driver.keep_current(|| drop(context));
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Device { ordinal, capability, policy, programmatic_launch, .. } = self;
        let mut text = f.debug_struct("Device");
        text.field("ordinal", ordinal).field("capability", capability).field("policy", policy);
        text.field("programmatic_launch", programmatic_launch).finish_non_exhaustive()
    }
}

impl Device {
    /// GPU number `ordinal`, with its primary context, which lives at least as long as this.
    ///
    /// The primary context is the one that the CUDA runtime, and with it most engines, uses. The context that is current on
    /// this thread stays so.
    ///
    /// # Errors
    /// [`Error::DriverMissing`], [`Error::DriverTooOld`], [`Error::NoDevice`], [`Error::NoSuchDevice`], and
    /// [`Error::Driver`] when the context cannot be made.
    pub fn new(ordinal: usize) -> Result<Self> {
        let driver = Driver::get()?;
        let count = driver.device_count()?;
        if ordinal >= count {
            return Err(Error::NoSuchDevice { ordinal, count });
        }
        // cudarc panics without a driver; `Driver::get` found one, with all that this calls.
        let context = driver.keep_current(|| CudaContext::new(ordinal));
        Self::from_context(context.map_err(|error| driver.failed("cuDevicePrimaryCtxRetain", error))?)
    }

    /// The GPU of a context.
    ///
    /// # Errors
    /// [`Error::DriverMissing`], [`Error::DriverTooOld`], [`Error::NoDevice`], [`Error::Driver`].
    pub fn from_context(context: Arc<CudaContext>) -> Result<Self> {
        let driver = Driver::get()?;
        let ordinal = context.cu_device();
        Self::with_home(driver, ordinal, Some(Home { driver, context: Some(context) }))
    }

    /// The GPU of the context that is current on this thread, whoever made it. The context is not owned: it need not
    /// outlive this.
    ///
    /// # Errors
    /// [`Error::NoContext`] when there is none, and those of [`Device::from_context`].
    pub fn from_current_context() -> Result<Self> {
        let driver = Driver::get()?;
        let ordinal = driver.current()?.device()?;
        Self::with_home(driver, ordinal, None)
    }

    fn with_home(driver: &'static Driver, ordinal: i32, home: Option<Home>) -> Result<Self> {
        let capability = Capability {
            major: driver.attribute(ordinal, Attribute::CapabilityMajor)?,
            minor: driver.attribute(ordinal, Attribute::CapabilityMinor)?,
            shared_optin_bytes: driver.attribute(ordinal, Attribute::SharedOptinBytes)?,
            multiprocessors: driver.attribute(ordinal, Attribute::Multiprocessors)?,
        };
        Ok(Device { driver, ordinal, capability, policy: Policy::default(), programmatic_launch: false, catalog: catalog(), home })
    }

    /// The same device with another policy about just-in-time compilation.
    #[must_use]
    pub fn with_policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Changes the policy about just-in-time compilation for this value; clones keep theirs.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// The same device with programmatic launches allowed, or not: a kernel may then start while the kernel before it in the
    /// stream still runs, which CUDA calls programmatic dependent launch. Off at first. Results are the same; what it saves
    /// is a part of the time between two kernels.
    ///
    /// It concerns the kernels that take tensor maps, those for Hopper; [`Launched::programmatic`](crate::Launched) says
    /// whether a launch was one. Other kernels have no instruction to wait with, and are launched as ever.
    ///
    /// - **The kernel before ours** may be any. Ours can start when each block of it has executed
    ///   `griddepcontrol.launch_dependents` (`cudaTriggerProgrammaticLaunchCompletion`) or has ended. It sets itself up, and
    ///   waits until that kernel has ended and what it wrote is visible, before it reads q, k or v or writes o or the LSE.
    ///   After a kernel that never executes that instruction, ours starts when that one has ended, and no more than the
    ///   latency of a launch is saved. What is no kernel, such as a copy, ends before ours starts.
    /// - **A kernel after ours** that is launched with `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION` can start while
    ///   ours runs, whether or not ours was launched so. It must execute `griddepcontrol.wait`
    ///   (`cudaGridDependencySynchronize`) before it reads o or the LSE, or writes anything that ours accesses. One that is
    ///   launched without the attribute starts when ours has ended.
    /// - **A stream stays in order only as long as every kernel that is launched so waits.** One that does not can end before
    ///   the kernels in front of it, and then who waits for it, as ours would, has not waited for them. Ours always waits.
    /// - **In a capture** the launch becomes a node with a programmatic edge from the kernel before it, which graphs have from
    ///   CUDA 12.3 on; how older drivers capture it was not tried. Two launches of one graph do not overlap. Code that looks
    ///   at the edges must use the functions of the driver that know of edge data.
    #[must_use]
    pub fn with_programmatic_launch(mut self, allowed: bool) -> Self {
        self.programmatic_launch = allowed;
        self
    }

    /// Changes for this value whether launches are programmatic, as [`Device::with_programmatic_launch`]; clones keep theirs.
    pub fn set_programmatic_launch(&mut self, allowed: bool) {
        self.programmatic_launch = allowed;
    }

    /// The same device with other kernels than the packaged ones.
    ///
    /// # Safety
    /// Every cubin of `catalog` is a complete image, and every kernel does what its entry says: it takes the
    /// parameters of a packaged kernel and accesses nothing but the elements of its problem's tensors; one that takes tensor
    /// maps does so only after `griddepcontrol.wait`, and one whose blocks form clusters works in clusters of each of its sizes:
    /// at least one, all of 1 to 8 blocks.
    #[must_use]
    pub unsafe fn with_catalog(mut self, catalog: &'static [Entry]) -> Self {
        self.catalog = catalog;
        self
    }

    /// What decides which code runs on this GPU.
    pub fn capability(&self) -> Capability {
        self.capability
    }

    /// The policy about just-in-time compilation.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Whether launches are programmatic where the kernel can be launched so.
    pub fn programmatic_launch(&self) -> bool {
        self.programmatic_launch
    }

    /// Number of the GPU.
    pub fn ordinal(&self) -> usize {
        usize::try_from(self.ordinal).unwrap_or(0)
    }

    /// The context given to or made by the constructor; `None` for [`Device::from_current_context`].
    pub fn context(&self) -> Option<&Arc<CudaContext>> {
        self.home.as_ref()?.context.as_ref()
    }

    /// The kernels that this device chooses from.
    pub fn catalog(&self) -> &'static [Entry] {
        self.catalog
    }

    /// The kernel that a launch of `problem` would run, for addresses that are as aligned as its strides. Loads nothing.
    ///
    /// # Errors
    /// Those of [`crate::dispatch`]: why no kernel serves the problem here.
    pub fn supports(&self, problem: &Problem) -> Result<Choice> {
        self.choose(problem, Alignment::of_strides(problem)).map(|(choice, _)| choice)
    }

    pub(crate) fn choose(&self, problem: &Problem, alignment: Alignment) -> Result<(Choice, Grid)> {
        select(problem, alignment, self.capability, self.policy, self.catalog)
    }

    /// Loads the kernels for some problems, completely, so that their first launch takes no longer than others and can
    /// be captured into a graph. Waits for the loading, which includes a compilation where there is only PTX.
    ///
    /// Which kernel serves a problem depends on its sizes and strides, and on the addresses: those that are no multiple of 16
    /// bytes get another one, which is not loaded here. Give every problem that will be launched, or use
    /// [`Device::warm_up_all`], which loads those too.
    ///
    /// They are loaded into the context given to or made by the constructor; after
    /// [`Device::from_current_context`], into the one that is current now. For further contexts of the GPU make
    /// further `Device`s. Other streams may be under capture meanwhile.
    ///
    /// # Errors
    /// Those of [`Device::supports`] for the first problem that has no kernel, then [`Error::Load`] or [`Error::Jit`];
    /// [`Error::NoContext`] and [`Error::WrongDevice`] where the current context is none, or another GPU's.
    pub fn warm_up(&self, problems: &[Problem]) -> Result<()> {
        let choices = problems.iter().map(|problem| self.supports(problem)).collect::<Result<Vec<_>>>()?;
        self.load_all(choices.into_iter())
    }

    /// [`Device::warm_up`] for every kernel that a problem can get on this GPU.
    ///
    /// # Errors
    /// Those of [`Device::warm_up`].
    pub fn warm_up_all(&self) -> Result<()> {
        self.load_all(reachable(self.capability, self.policy, self.catalog))
    }

    pub(crate) fn load_all(&self, mut choices: impl Iterator<Item = Choice>) -> Result<()> {
        let current = match self.context() {
            // SAFETY: the context lives as long as `self.home`, which outlives `current`.
            Some(context) => unsafe { self.driver.enter(context.cu_ctx().cast()) }?,
            None => self.driver.current()?,
        };
        choices.try_for_each(|choice| match self.loaded(&current, &choice)? {
            Some(_) => Ok(()),
            None => self.load(&current, &choice).map(drop),
        })
    }

    /// The chosen kernel in a context of this GPU, if it is loaded there.
    pub(crate) fn loaded(&self, current: &Current, choice: &Choice) -> Result<Option<Function>> {
        let function = functions::find(current.id()?, self.ordinal, self.catalog, choice.index)?;
        if function.is_none() {
            let context = current.device()?;
            if context != self.ordinal {
                return Err(Error::WrongDevice { context, device: self.ordinal });
            }
        }
        Ok(function)
    }

    /// The chosen kernel in a context, where [`Device::loaded`] did not find it.
    pub(crate) fn load(&self, current: &Current, choice: &Choice) -> Result<Function> {
        let owner = Owner { id: current.id()?, address: current.address()?, device: self.ordinal };
        functions::find_or_load(owner, self.catalog, choice.index, || self.load_code(current, choice))
    }

    fn load_code(&self, current: &Current, choice: &Choice) -> Result<Function> {
        let Entry { name, shared_bytes, .. } = *choice.entry;
        let entry_point = CString::new(name).unwrap_or_default();
        match choice.code {
            Code::Cubin(cubin) => {
                // SAFETY: the image is complete: `choice` comes from `self.catalog`, which is the packaged one or
                // fulfils the contract of `with_catalog`.
                let loaded = unsafe { current.load(Image::Cubin(cubin.image), &entry_point, shared_bytes) };
                loaded.map_err(|failure| Error::Load { kernel: name, source: failure.source })
            }
            Code::Ptx(ptx) => {
                let text = CString::new(ptx.text).unwrap_or_default();
                let start = Instant::now();
                // SAFETY: not a cubin.
                let loaded = unsafe { current.load(Image::Ptx(&text), &entry_point, shared_bytes) };
                let function = loaded.map_err(|failure| {
                    let (log, source) = (failure.log, failure.source);
                    Error::Jit { kernel: name, version: ptx.version, log, source }
                })?;
                jit::record(name, self.capability, start.elapsed());
                Ok(function)
            }
        }
    }
}
