//! PTX text: the only file that knows its syntax (PTX ISA 9.0, chapters 4, 5 and 9).

use std::fmt::Write;
use std::panic::Location;

use super::builder::{Kernel, Stmt};
use super::inst::{Atomic, Binary, Compare, Inst, Label, MmaType, Order, PtxVersion, Special, Unary, WgmmaLeft};
use super::types::{RegId, Src, Ty};

/// A kernel's text.
pub struct Text {
    /// The `.version` it declares: the lowest that has all its instructions.
    pub version: PtxVersion,
    /// PTX, each instruction followed by a tab and a comment with its Rust origin.
    pub ptx: String,
}

/// Name of the dynamic shared memory array.
const SHARED: &str = "dynamic_shared";

impl Kernel {
    /// Writes the kernel as a PTX module with one entry point.
    ///
    /// # Errors
    /// If an instruction does not exist on the kernel's target.
    pub fn emit(&self) -> Result<Text, String> {
        let version = self.required_version()?;
        let namer = Namer::new(self);
        let header = &self.header;
        let mut ptx = String::new();
        let mut line = |text: &str| {
            ptx.push_str(text);
            ptx.push('\n');
        };
        line(&format!(".version {version}"));
        line(&format!(".target {}", header.target));
        line(".address_size 64");
        for table in self.module_tables() {
            line(&table);
        }
        line(&format!(".extern .shared .align 1024 .b8 {SHARED}[];"));
        line(&format!(".visible .entry {}(.param .align {} .b8 params[{}])", header.name, header.params.align(), header.params.size()));
        line(&format!(".reqntid {}, 1, 1 .minnctapersm {}", header.threads, header.blocks_per_sm));
        line("{");
        for declaration in namer.declarations() {
            line(&declaration);
        }
        for stmt in self.body.borrow().iter() {
            line(&namer.statement(stmt));
        }
        line("\tret;");
        line("}");
        Ok(Text { version, ptx })
    }

    /// Declarations of the tables that the kernel names.
    fn module_tables(&self) -> Vec<String> {
        let mut tables = Vec::new();
        for stmt in self.body.borrow().iter() {
            if let Inst::ModuleTable { name, words, .. } = stmt.inst {
                let table = format!(".global .align 8 .b64 {name}[{words}];");
                if !tables.contains(&table) {
                    tables.push(table);
                }
            }
        }
        tables
    }

    fn required_version(&self) -> Result<PtxVersion, String> {
        let target = self.header.target;
        let mut version = target.min_version();
        for stmt in self.body.borrow().iter() {
            let (since, needed) = stmt.inst.requires();
            if !target.provides(needed) {
                return Err(format!("{}: {:?} needs {needed}, but {} is for {target}", origin(stmt.origin), stmt.inst, self.header.name));
            }
            version = version.max(since);
        }
        Ok(version)
    }
}

/// The Rust line as a path within the repository: nothing of the machine that builds it.
fn origin(at: &Location<'_>) -> String {
    let file = at.file().replace('\\', "/");
    let inside = file.rfind("src/").map_or(file.as_str(), |i| &file[i..]);
    format!("ptx-gen/{inside}:{}", at.line())
}

/// Register names: a letter for the class and a number within it.
struct Namer {
    names: Vec<String>,
    counts: Vec<(&'static str, &'static str, u32)>,
}

impl Namer {
    fn new(kernel: &Kernel) -> Self {
        let mut namer = Namer { names: Vec::new(), counts: Vec::new() };
        for reg in kernel.regs.borrow().iter() {
            let (prefix, class) = match reg.ty {
                Ty::Pred => ("%p", ".pred"),
                Ty::B16 => ("%h", ".b16"),
                Ty::B32 | Ty::U32 | Ty::S32 => ("%r", ".b32"),
                Ty::U64 => ("%rd", ".b64"),
                Ty::F32 => ("%f", ".f32"),
            };
            let at = namer.counts.iter().position(|c| c.0 == prefix).unwrap_or_else(|| {
                namer.counts.push((prefix, class, 0));
                namer.counts.len() - 1
            });
            let count = &mut namer.counts[at].2;
            namer.names.push(format!("{prefix}{count}"));
            *count += 1;
        }
        namer
    }

    fn declarations(&self) -> impl Iterator<Item = String> + '_ {
        self.counts.iter().map(|(prefix, class, count)| format!("\t.reg {class} {prefix}<{count}>;"))
    }

    fn reg(&self, reg: RegId) -> &str {
        &self.names[reg.0 as usize]
    }

    fn src(&self, src: Src, ty: Ty) -> String {
        match (src, ty) {
            (Src::Reg(reg), _) => self.reg(reg).to_owned(),
            (Src::Imm(bits), Ty::F32) => format!("0f{:08X}", bits as u32),
            (Src::Imm(bits), Ty::S32) => format!("{}", bits as u32 as i32),
            (Src::Imm(bits), _) => format!("{bits}"),
        }
    }

    fn vector(&self, regs: &[RegId]) -> String {
        let names: Vec<_> = regs.iter().map(|r| self.reg(*r)).collect();
        format!("{{{}}}", names.join(", "))
    }

    /// One register, or several in braces with the `.vN` that loads and stores spell.
    fn access(&self, regs: &[RegId]) -> (String, String) {
        match regs {
            [one] => (String::new(), self.reg(*one).to_owned()),
            many => (format!(".v{}", many.len()), self.vector(many)),
        }
    }

    fn address(&self, addr: RegId, offset: i32) -> String {
        match offset {
            0 => format!("[{}]", self.reg(addr)),
            _ => format!("[{}{offset:+}]", self.reg(addr)),
        }
    }

    fn statement(&self, stmt: &Stmt) -> String {
        match &stmt.inst {
            Inst::Note(text) => return format!("// {text}"),
            Inst::Label(label) => return format!("{}:", label_name(*label)),
            _ => {}
        }
        let mut line = String::from("\t");
        if let Some(guard) = stmt.guard {
            let not = if guard.negated { "!" } else { "" };
            let _ = write!(line, "@{not}{} ", self.reg(guard.predicate));
        }
        let _ = write!(line, "{};\t// {}", self.instruction(&stmt.inst), origin(stmt.origin));
        line
    }

    fn instruction(&self, inst: &Inst) -> String {
        let r = |reg: &RegId| self.reg(*reg);
        match inst {
            Inst::Note(_) | Inst::Label(_) => unreachable!("written by statement()"),
            Inst::Bra { to, uniform } => format!("bra{} {}", if *uniform { ".uni" } else { "" }, label_name(*to)),
            Inst::Mov { ty, d, a } => format!("mov.{} {}, {}", ty_name(*ty), r(d), self.src(*a, *ty)),
            Inst::ReadSpecial { d, from: Special::GridId } => format!("mov.u64 {}, %gridid", r(d)),
            Inst::ReadSpecial { d, from } => format!("mov.u32 {}, {}", r(d), special_name(*from)),
            Inst::SharedBase { d } => format!("mov.u32 {}, {SHARED}", r(d)),
            Inst::LdParam { ty, d, offset } => format!("ld.param.{} {}, [params+{offset}]", ty_name(*ty), r(d)),
            Inst::Binary { op, ty, d, a, b } => {
                // The amount of a shift is a u32 whatever is shifted.
                let b_ty = if matches!(op, Binary::Shl | Binary::Shr) { Ty::U32 } else { *ty };
                format!("{} {}, {}, {}", binary_name(*op, *ty), r(d), self.src(*a, *ty), self.src(*b, b_ty))
            }
            Inst::Unary { op, d, a } => format!("{} {}, {}", unary_name(*op), r(d), self.src(*a, Ty::F32)),
            Inst::MulAdd { ty, d, a, b, c } => {
                let name = if *ty == Ty::F32 { "fma.rn.f32".to_owned() } else { format!("mad.lo.{}", ty_name(*ty)) };
                format!("{name} {}, {}, {}, {}", r(d), self.src(*a, *ty), self.src(*b, *ty), self.src(*c, *ty))
            }
            Inst::SetP { cmp, ty, d, a, b } => {
                format!("setp.{}.{} {}, {}, {}", compare_name(*cmp), ty_name(*ty), r(d), self.src(*a, *ty), self.src(*b, *ty))
            }
            Inst::SelP { ty, d, a, b, p } => {
                format!("selp.{} {}, {}, {}, {}", ty_name(*ty), r(d), self.src(*a, *ty), self.src(*b, *ty), r(p))
            }
            Inst::Widen { d, a } => format!("cvt.u64.u32 {}, {}", r(d), r(a)),
            Inst::Narrow { d, a } => format!("cvt.u32.u64 {}, {}", r(d), r(a)),
            Inst::FloatFromInt { d, a } => format!("cvt.rn.f32.s32 {}, {}", r(d), r(a)),
            Inst::Halves { lo, hi, a } => format!("mov.b32 {{{}, {}}}, {}", r(lo), r(hi), r(a)),
            Inst::WidenF16 { d, a } => format!("cvt.f32.f16 {}, {}", r(d), r(a)),
            Inst::Pack { ty, d, hi, lo } => format!("cvt.rn.{}x2.f32 {}, {}, {}", mma_name(*ty), r(d), r(hi), r(lo)),
            Inst::Ld { space, ty, d, addr, offset } => {
                let (v, regs) = self.access(d);
                format!("ld.{space}{v}.{} {regs}, {}", ty_name(*ty), self.address(*addr, *offset))
            }
            Inst::St { space, ty, v, addr, offset } => {
                let (n, regs) = self.access(v);
                format!("st.{space}{n}.{} {}, {regs}", ty_name(*ty), self.address(*addr, *offset))
            }
            _ => self.matrix_or_copy(inst),
        }
    }

    fn matrix_or_copy(&self, inst: &Inst) -> String {
        let r = |reg: &RegId| self.reg(*reg);
        match inst {
            Inst::CpAsync { bytes, dst, dst_offset, src, src_bytes } => {
                // Only 16-byte copies can bypass L1 (PTX ISA, "cp.async").
                let cache = if *bytes == 16 { "cg" } else { "ca" };
                let size = src_bytes.as_ref().map_or(String::new(), |s| format!(", {}", r(s)));
                let dst = self.address(*dst, *dst_offset);
                format!("cp.async.{cache}.shared.global {dst}, [{}], {bytes}{size}", r(src))
            }
            Inst::CpAsyncCommit => "cp.async.commit_group".to_owned(),
            Inst::CpAsyncWait { pending } => format!("cp.async.wait_group {pending}"),
            Inst::LdMatrix { trans, d, addr, offset } => {
                let trans = if *trans { ".trans" } else { "" };
                format!("ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {}, {}", self.vector(d), self.address(*addr, *offset))
            }
            Inst::Mma { ty, d, a, b, c } => {
                let (shape, name) = (if *ty == MmaType::Tf32 { "m16n8k8" } else { "m16n8k16" }, mma_name(*ty));
                let operands = [&d[..], a, b, c].map(|v| self.vector(v)).join(", ");
                format!("mma.sync.aligned.{shape}.row.col.f32.{name}.{name}.f32 {operands}")
            }
            Inst::ShflBfly { d, a, lane_mask } => format!("shfl.sync.bfly.b32 {}, {}, {lane_mask}, 31, 0xffffffff", r(d), r(a)),
            Inst::ShflIdx { d, a, lane } => format!("shfl.sync.idx.b32 {}, {}, {lane}, 31, 0xffffffff", r(d), r(a)),
            Inst::VoteAny { d, a } => format!("vote.sync.any.pred {}, {}, 0xffffffff", r(d), r(a)),
            Inst::BarSync => "bar.sync 0".to_owned(),
            Inst::WarpSync => "bar.warp.sync 0xffffffff".to_owned(),
            Inst::ModuleTable { .. } | Inst::Atomic { .. } | Inst::LdStrong { .. } | Inst::StStrong { .. } | Inst::Nanosleep { .. } => {
                self.between_blocks(inst)
            }
            _ => self.hopper(inst),
        }
    }

    /// What blocks of a grid share through global memory.
    fn between_blocks(&self, inst: &Inst) -> String {
        let r = |reg: &RegId| self.reg(*reg);
        match inst {
            Inst::ModuleTable { d, name, .. } => format!("mov.u64 {}, {name}", r(d)),
            Inst::Atomic { op, order, d, addr, operands } => {
                let (op, ty) = match op {
                    Atomic::Add => ("add", "u64"),
                    Atomic::AddLow => ("add", "u32"),
                    Atomic::CompareSwap => ("cas", "b64"),
                };
                let operands: Vec<_> = operands.iter().map(|s| self.src(*s, Ty::U64)).collect();
                format!("atom.{}.gpu.global.{op}.{ty} {}, [{}], {}", order_name(*order), r(d), r(addr), operands.join(", "))
            }
            Inst::LdStrong { d, addr } => format!("ld.relaxed.gpu.global.u64 {}, [{}]", r(d), r(addr)),
            Inst::StStrong { order, addr, v } => {
                format!("st.{}.gpu.global.u64 [{}], {}", order_name(*order), r(addr), self.src(*v, Ty::U64))
            }
            Inst::Nanosleep { ns } => format!("nanosleep.u32 {ns}"),
            other => unreachable!("written by matrix_or_copy(): {other:?}"),
        }
    }

    /// Instructions of sm_90 and sm_90a.
    fn hopper(&self, inst: &Inst) -> String {
        let r = |reg: &RegId| self.reg(*reg);
        match inst {
            Inst::NamedBarrier { id, threads, wait } => {
                format!("bar.{} {}, {threads}", if *wait { "sync" } else { "arrive" }, self.src(*id, Ty::U32))
            }
            Inst::SetMaxNReg { increase, registers } => {
                format!("setmaxnreg.{}.sync.aligned.u32 {registers}", if *increase { "inc" } else { "dec" })
            }
            Inst::Elect { d } => format!("elect.sync _|{}, 0xffffffff", r(d)),
            Inst::MbarrierInit { addr, offset, arrivals } => {
                format!("mbarrier.init.shared::cta.b64 {}, {arrivals}", self.address(*addr, *offset))
            }
            Inst::MbarrierExpect { addr, offset, bytes } => {
                format!("mbarrier.arrive.expect_tx.shared::cta.b64 _, {}, {}", self.address(*addr, *offset), self.src(*bytes, Ty::U32))
            }
            Inst::MbarrierArrive { addr, offset } => format!("mbarrier.arrive.shared::cta.b64 _, {}", self.address(*addr, *offset)),
            Inst::MbarrierArriveRemote { addr, offset } => {
                format!("mbarrier.arrive.shared::cluster.b64 _, {}", self.address(*addr, *offset))
            }
            Inst::StAsync { v, addr, offset, barrier, barrier_offset } => format!(
                "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 {}, {}, {}",
                self.address(*addr, *offset),
                r(v),
                self.address(*barrier, *barrier_offset)
            ),
            Inst::MbarrierTryWait { d, addr, offset, parity } => {
                format!("mbarrier.try_wait.parity.shared::cta.b64 {}, {}, {}", r(d), self.address(*addr, *offset), r(parity))
            }
            Inst::FenceMbarrierInit => "fence.mbarrier_init.release.cluster".to_owned(),
            Inst::FenceProxyAsync => "fence.proxy.async.shared::cta".to_owned(),
            // Without cvta.param ptxas would take the offset in parameter space for a generic address.
            Inst::ParamAddress { d, offset } => format!("mov.b64 {0}, params; cvta.param.u64 {0}, {0}; add.u64 {0}, {0}, {offset}", r(d)),
            Inst::TensorLoad { dst, dst_offset, map, at, barrier, barrier_offset, blocks } => format!(
                "cp.async.bulk.tensor.{}d.shared::cluster.global.mbarrier::complete_tx::bytes{} {}, [{}, {}], {}{}",
                at.len(),
                if blocks.is_some() { ".multicast::cluster" } else { "" },
                self.address(*dst, *dst_offset),
                r(map),
                self.vector(at),
                self.address(*barrier, *barrier_offset),
                blocks.map(|mask| format!(", {mask}")).unwrap_or_default()
            ),
            Inst::TensorStore { map, at, src, src_offset } => format!(
                "cp.async.bulk.tensor.{}d.global.shared::cta.bulk_group [{}, {}], {}",
                at.len(),
                r(map),
                self.vector(at),
                self.address(*src, *src_offset)
            ),
            Inst::BulkCommit => "cp.async.bulk.commit_group".to_owned(),
            Inst::BulkWait { pending } => format!("cp.async.bulk.wait_group {pending}"),
            Inst::BulkWaitRead { pending } => format!("cp.async.bulk.wait_group.read {pending}"),
            Inst::StMatrix { v, addr, offset } => {
                format!("stmatrix.sync.aligned.m8n8.x4.shared.b16 {}, {}", self.address(*addr, *offset), self.vector(v))
            }
            Inst::Wgmma { ty, n, d, a, b, accumulate, trans_b } => {
                let name = mma_name(*ty);
                // scale-d, then the signs of a and b, then the transpositions: b alone if a is in registers.
                let (a, trans_a) = match a {
                    WgmmaLeft::Shared(descriptor) => (r(descriptor).to_owned(), " 0,"),
                    WgmmaLeft::Registers(fragment) => (self.vector(fragment), ""),
                };
                format!(
                    "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{name}.{name} {}, {a}, {}, {}, 1, 1,{trans_a} {}",
                    self.vector(d),
                    r(b),
                    r(accumulate),
                    u32::from(*trans_b)
                )
            }
            Inst::WgmmaFence => "wgmma.fence.sync.aligned".to_owned(),
            Inst::WgmmaCommit => "wgmma.commit_group.sync.aligned".to_owned(),
            Inst::WgmmaWait { pending } => format!("wgmma.wait_group.sync.aligned {pending}"),
            Inst::MapShared { d, addr, rank } => format!("mapa.shared::cluster.u32 {}, {}, {}", r(d), r(addr), r(rank)),
            Inst::ClusterArrive { releases } => format!("barrier.cluster.arrive.{}.aligned", if *releases { "release" } else { "relaxed" }),
            Inst::ClusterWait => "barrier.cluster.wait.acquire.aligned".to_owned(),
            Inst::AwaitPrerequisites => "griddepcontrol.wait".to_owned(),
            Inst::LaunchDependents => "griddepcontrol.launch_dependents".to_owned(),
            other => unreachable!("written by instruction(): {other:?}"),
        }
    }
}

fn label_name(label: Label) -> String {
    format!("L{}_{}", label.number, label.what.replace(' ', "_"))
}

fn ty_name(ty: Ty) -> &'static str {
    match ty {
        Ty::Pred => "pred",
        Ty::B16 => "b16",
        Ty::B32 => "b32",
        Ty::U32 => "u32",
        Ty::S32 => "s32",
        Ty::U64 => "u64",
        Ty::F32 => "f32",
    }
}

fn mma_name(ty: MmaType) -> &'static str {
    match ty {
        MmaType::F16 => "f16",
        MmaType::Bf16 => "bf16",
        MmaType::Tf32 => "tf32",
    }
}

fn binary_name(op: Binary, ty: Ty) -> String {
    let name = ty_name(ty);
    let float = ty == Ty::F32;
    let bits = if ty == Ty::Pred { "pred" } else { "b32" };
    match op {
        // `.rn` keeps ptxas from contracting a product and a sum into one rounding.
        Binary::Add if float => "add.rn.f32".to_owned(),
        Binary::Sub if float => "sub.rn.f32".to_owned(),
        Binary::Mul if float => "mul.rn.f32".to_owned(),
        Binary::Add => format!("add.{name}"),
        Binary::Sub => format!("sub.{name}"),
        Binary::Mul => format!("mul.lo.{name}"),
        Binary::MulHigh => format!("mul.hi.{name}"),
        Binary::Min => format!("min.{name}"),
        Binary::Max => format!("max.{name}"),
        Binary::MaxNan => "max.NaN.f32".to_owned(),
        Binary::And => format!("and.{bits}"),
        Binary::Or => format!("or.{bits}"),
        Binary::Xor => format!("xor.{bits}"),
        Binary::Shl if ty == Ty::U64 => "shl.b64".to_owned(),
        Binary::Shl => format!("shl.{bits}"),
        Binary::Shr => format!("shr.{name}"),
    }
}

fn unary_name(op: Unary) -> &'static str {
    match op {
        Unary::Ex2 => "ex2.approx.ftz.f32",
        Unary::Lg2 => "lg2.approx.f32",
        Unary::Rcp => "rcp.approx.ftz.f32",
        Unary::Neg => "neg.f32",
    }
}

fn order_name(order: Order) -> &'static str {
    match order {
        Order::Relaxed => "relaxed",
        Order::Acquire => "acquire",
        Order::Release => "release",
    }
}

fn compare_name(cmp: Compare) -> &'static str {
    match cmp {
        Compare::Eq => "eq",
        Compare::Lt => "lt",
        Compare::Le => "le",
        Compare::Gt => "gt",
        Compare::Ne => "ne",
        Compare::Gtu => "gtu",
    }
}

fn special_name(special: Special) -> &'static str {
    match special {
        Special::TidX => "%tid.x",
        Special::LaneId => "%laneid",
        Special::CtaIdX => "%ctaid.x",
        Special::CtaIdY => "%ctaid.y",
        Special::CtaIdZ => "%ctaid.z",
        Special::NctaIdX => "%nctaid.x",
        Special::NctaIdY => "%nctaid.y",
        Special::GridId => "%gridid",
        Special::ClusterIdX => "%clusterid.x",
        Special::ClusterRank => "%cluster_ctarank",
        Special::ClusterSizeX => "%cluster_nctaid.x",
    }
}
