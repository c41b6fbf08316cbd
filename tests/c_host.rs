//! C and C++ programs as hosts: the header under strict compilers, the installed files, the examples, bad input, and
//! many threads on a GPU.

#![cfg(all(feature = "capi", target_os = "linux"))]

mod device_kernels;
mod fake_driver;

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::io::Write;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use attnpack::{Code, DType, Device, Entry, Group, Mask, MaskSupport, Pointers, Problem, Shape, Strides};
use device_kernels::{PrefillParams, PrefillTmaParams};
use fake_driver::{Fake, with_driver};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const HEADER: &str = include_str!("../include/attnpack.h");
const STRICT: [&str; 5] = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"];

/// A language standard and the suffix of its sources.
const C: [(&str, &str); 3] = [("c99", "c"), ("c11", "c"), ("c17", "c")];
const CXX: [(&str, &str); 2] = [("c++11", "cc"), ("c++17", "cc")];

/// Writes past the capture of `println!`, so that it shows.
fn skipped(what: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {what}");
}

/// An empty folder for a test.
fn folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c_host").join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("a folder in the target folder");
    dir
}

/// The folder of the libraries that Cargo built for these tests.
fn libraries() -> PathBuf {
    let mut path = env::current_exe().expect("this program");
    path.pop();
    assert!(path.join("libattnpack.so").is_file() && path.join("libattnpack.a").is_file(), "no libraries in {}", path.display());
    path
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, text(&output));
    text(&output)
}

/// The C compiler that cc picks, which is the linker of Rust as well.
fn cc() -> Command {
    let target = format!("{}-unknown-linux-gnu", env::consts::ARCH);
    let mut build = cc::Build::new();
    build.host(&target).target(&target).opt_level(1).cargo_metadata(false);
    Command::new(build.get_compiler().path())
}

/// The compilers of this machine for a suffix, by the names that people call them by.
fn compilers(suffix: &str) -> Vec<&'static str> {
    let names = if suffix == "c" { ["cc", "gcc", "clang"] } else { ["c++", "g++", "clang++"] };
    let (found, missing): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| Command::new(name).arg("--version").output().is_ok());
    for name in missing {
        skipped(&format!("{name}: it is not installed"));
    }
    found
}

/// A source of the repository, compiled as C or as C++, linked with `library`. Returns the program.
fn compile(
    compiler: &str,
    (standard, suffix): (&str, &str),
    source: &str,
    include: &Path,
    library: &[String],
    program: PathBuf,
) -> PathBuf {
    let mut command = Command::new(compiler);
    command.args(STRICT).arg(format!("-std={standard}")).arg("-I").arg(include).args(["-x", if suffix == "c" { "c" } else { "c++" }]);
    command.arg(Path::new(ROOT).join(source)).args(["-x", "none"]).args(library).args(["-lm", "-ldl", "-lpthread", "-o"]).arg(&program);
    run(&mut command);
    program
}

/// The shared library where it was built. It is known by its SONAME, which only an installed one has as its name.
fn built_library(dir: &Path) -> Vec<String> {
    let soname = soname();
    let link = dir.join(&soname);
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(libraries().join("libattnpack.so"), &link).expect("a link");
    vec![link.display().to_string(), format!("-Wl,-rpath,{}", dir.display())]
}

/// `libattnpack.so.0.1` for version 0.1.x, `libattnpack.so.2` for 2.x.
fn soname() -> String {
    let breaking = match env!("CARGO_PKG_VERSION_MAJOR") {
        "0" => concat!("0.", env!("CARGO_PKG_VERSION_MINOR")),
        major => major,
    };
    format!("libattnpack.so.{breaking}")
}

#[test]
fn the_header_is_valid_c_and_cxx() {
    let dir = folder("header");
    let source = "#include <attnpack.h>\n#include <attnpack.h>\n\
        int main(void) { attnpack_prefill_params p; p.struct_size = sizeof p; return (int)p.struct_size == ATTNPACK_VERSION; }\n";
    for (standard, suffix) in C.into_iter().chain(CXX) {
        let file = dir.join(format!("header.{suffix}"));
        fs::write(&file, source).expect("writable");
        for compiler in compilers(suffix) {
            let mut command = Command::new(compiler);
            command.args(STRICT).arg(format!("-std={standard}")).arg("-I").arg(Path::new(ROOT).join("include"));
            run(command.arg("-c").arg(&file).arg("-o").arg(dir.join("header.o")));
        }
    }
}

#[test]
fn the_c_code_of_the_readme_compiles() {
    let readme = include_str!("../README.md");
    let dir = folder("readme");
    let pieces: Vec<_> = readme.split("```c\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(!pieces.is_empty());
    for piece in pieces {
        let file = dir.join("readme.c");
        fs::write(&file, piece).expect("writable");
        let include = Path::new(ROOT).join("include");
        run(cc().args(STRICT).arg("-I").arg(include).arg("-c").arg(&file).arg("-o").arg(dir.join("readme.o")));
    }
}

/// The functions that the header declares.
fn declared() -> BTreeSet<String> {
    let calls = HEADER.split("ATTNPACK_API ").skip(1).filter_map(|rest| rest.split('(').next());
    let names = calls.filter_map(|head| head.rsplit([' ', '*']).next()).filter(|name| name.starts_with("attnpack_"));
    names.map(str::to_owned).collect()
}

#[test]
fn the_shared_library_exports_what_the_header_declares_and_needs_libc_only() {
    let library = libraries().join("libattnpack.so");
    let Ok(output) = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output() else {
        return skipped("exports: there is no nm");
    };
    let exported: BTreeSet<_> = text(&output).lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect();
    assert!(declared().len() > 10);
    assert_eq!(exported, declared());

    let dynamic = run(Command::new("readelf").args(["-d", "-W"]).arg(&library));
    assert!(dynamic.contains(&format!("soname: [{}]", soname())), "{dynamic}");
    let needed = dynamic.lines().filter(|line| line.contains("(NEEDED)")).filter_map(|line| line.split(['[', ']']).nth(1));
    for name in needed {
        let of_libc =
            ["libc.so", "ld-linux", "libm.so", "libdl.so", "libpthread.so", "librt.so"].iter().any(|known| name.starts_with(known));
        // The unwinder, where this machine has no static form of it.
        assert!(of_libc || name == "libgcc_s.so.1", "{name}");
        if !of_libc {
            skipped(&format!("libc only: the shared library needs {name}, because there is no libgcc_eh.a here"));
        }
    }
}

#[test]
fn the_example_is_built_from_the_installed_files() {
    let prefix = folder("install");
    let install = |prefix: &Path, libraries: &Path| {
        let mut install = Command::new("sh");
        install.arg(Path::new(ROOT).join("install.sh")).arg(prefix).arg(libraries).output().expect("sh runs")
    };
    let installed = install(&prefix, &libraries());
    assert!(installed.status.success(), "{}", text(&installed));
    let refused = install(Path::new("relative"), &libraries());
    assert!(refused.status.code() == Some(2) && text(&refused).contains("./install.sh PREFIX [LIBRARIES]"), "{}", text(&refused));
    let refused = install(&prefix, &prefix);
    assert!(text(&refused).contains("run cargo build --release first"), "{}", text(&refused));
    fs::write(prefix.join("libattnpack.a"), "no functions").expect("writable");
    let refused = install(&prefix, &prefix);
    assert!(refused.status.code() == Some(1) && text(&refused).contains("build it with the feature capi"), "{}", text(&refused));
    let lib = prefix.join("lib");
    for file in ["include/attnpack.h", "lib/libattnpack.a", "lib/libattnpack.so", "lib/pkgconfig/attnpack.pc", &format!("lib/{}", soname())]
    {
        assert!(prefix.join(file).is_file(), "{file} was not installed");
    }

    let (flags, private) = pkg_config(&prefix);
    let (include, rpath) = (prefix.join("include"), format!("-Wl,-rpath,{}", lib.display()));
    let dynamic: Vec<_> = flags.iter().cloned().chain([rpath]).collect();
    let whole: Vec<_> = [lib.join("libattnpack.a").display().to_string()].into_iter().chain(private).collect();
    let cc = cc().get_program().to_string_lossy().into_owned();
    for (kind, library) in [("dynamic", dynamic), ("static", whole)] {
        let program = compile(&cc, ("c99", "c"), "examples/c/prefill.c", &include, &library, prefix.join(kind));
        check_prefill(&program);
        if let Some(cxx) = compilers("cc").first() {
            check_prefill(&compile(cxx, ("c++17", "cc"), "examples/c/prefill.c", &include, &library, prefix.join(format!("{kind}_cxx"))));
        }
    }
}

/// Its structs are the header's: the library refuses other sizes, and what it says of a kernel is what the catalogue has.
#[test]
fn python_lists_the_kernels() {
    let program = Path::new(ROOT).join("examples/python/attnpack.py");
    let mut python = Command::new("python3");
    python.arg(program).env("ATTNPACK_LIBRARY", libraries().join("libattnpack.so")).env("PYTHONDONTWRITEBYTECODE", "1");
    let Ok(output) = python.output() else { return skipped("python_lists_the_kernels: there is no python3") };
    let told = text(&output);
    assert!(output.status.success(), "{told}");
    for entry in attnpack::catalog() {
        let archs: Vec<_> = entry.cubins.iter().map(|cubin| cubin.arch.to_string()).collect();
        let code = if archs.is_empty() { "none, PTX only".to_owned() } else { archs.join(" ") };
        let numbers = [entry.copy_bytes, entry.threads, entry.shared_bytes].map(|number| number.to_string()).join(" ");
        let row = format!("{} {numbers} {code}", entry.name);
        let rows = || told.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        assert!(rows().any(|line| line == row), "no line '{row}':\n{told}");
    }
}

/// The flags for the shared library, and the libraries that the static one needs.
fn pkg_config(prefix: &Path) -> (Vec<String>, Vec<String>) {
    let ask = |args: &[&str]| {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(args).arg("attnpack");
        command.output().ok().map(|output| {
            assert!(output.status.success(), "{}", text(&output));
            String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        })
    };
    let Some(flags) = ask(&["--cflags", "--libs"]) else {
        skipped("attnpack.pc: there is no pkg-config");
        return (vec![format!("-L{}", prefix.join("lib").display()), "-lattnpack".to_owned()], Vec::new());
    };
    assert_eq!(ask(&["--modversion"]), Some(vec![env!("CARGO_PKG_VERSION").to_owned()]));
    let private = ask(&["--static", "--libs-only-l"]).unwrap_or_default().into_iter().filter(|flag| flag != "-lattnpack").collect();
    (flags, private)
}

fn check_prefill(program: &Path) {
    let told = run(&mut Command::new(program));
    let listed = attnpack::catalog().iter().filter(|entry| told.lines().any(|line| line.split_whitespace().next() == Some(entry.name)));
    assert_eq!(listed.count(), attnpack::catalog().len(), "{told}");
    if told.contains("Nothing was executed") {
        skipped(&format!("{}: no GPU", program.display()));
        assert!(env::var_os("ATTNPACK_REQUIRE_GPU").is_none(), "ATTNPACK_REQUIRE_GPU is set:\n{told}");
    } else {
        assert!(told.contains("largest difference"), "{told}");
    }
}

#[test]
fn bad_input_has_a_status_and_a_text() {
    let dir = folder("bad_input");
    let cc = cc().get_program().to_string_lossy().into_owned();
    let program =
        compile(&cc, ("c99", "c"), "tests/c/bad_input.c", &Path::new(ROOT).join("include"), &built_library(&dir), dir.join("bad_input"));
    if let Some(fake) = fake_driver::folder("bad_input_has_a_status_and_a_text", "cuda_12_4") {
        let told = run(Command::new(&program).env("LD_LIBRARY_PATH", fake));
        assert!(told.contains("0 mistakes were answered wrongly"), "{told}");
    }
    if let Some(fake) = fake_driver::folder("bad_input_has_a_status_and_a_text", "cuda_11") {
        let told = run(Command::new(&program).env("LD_LIBRARY_PATH", fake));
        assert!(told.contains("an old driver, 0 mistakes"), "{told}");
    }
    // Without a driver, or with one that cannot be opened.
    fs::write(dir.join("libcuda.so.1"), "no library").expect("writable");
    let told = run(Command::new(&program).env("LD_LIBRARY_PATH", &dir));
    assert!(told.contains("no driver, 0 mistakes"), "{told}");
}

/// What a C host asks arrives as what a Rust program asks: the same kernel, loads, launch and parameters, or the same text.
#[test]
fn c_and_rust_ask_for_the_same() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c_host/mirror");
    let program = dir.join("mirror");
    let test = "c_and_rust_ask_for_the_same";
    if !fake_driver::is_child(test) {
        let cc = cc().get_program().to_string_lossy().into_owned();
        let dir = folder("mirror");
        compile(&cc, ("c99", "c"), "tests/c/mirror.c", &Path::new(ROOT).join("include"), &built_library(&dir), program.clone());
    }
    with_driver(test, "cuda_12_4", |fake| {
        let output = Command::new(&program).args([GRID_BYTES, MAPS_BYTES].map(|bytes| bytes.to_string())).output().expect("it starts");
        assert!(output.status.success(), "{}", text(&output));
        // Standard error may tell of a compilation.
        let told_c = String::from_utf8_lossy(&output.stdout);
        let told_rust = mirror(fake);
        for (line, (c, rust)) in told_c.lines().zip(&told_rust).enumerate() {
            assert_eq!(c, rust, "line {line}");
        }
        assert_eq!(told_c.lines().count(), told_rust.len());
    });
}

/// What `tests/c/mirror.c` does, in Rust.
fn mirror(fake: &Fake) -> Vec<String> {
    // A context of its own each time, so that kernels are loaded again.
    let address = 0x5000 + 16 * fake.calls("cuCtxGetDevice") as usize;
    fake.current(address, address as u64, 1);
    fake.stream(0x50, address);
    let mut device = Device::from_current_context().expect("a context");
    let has = device.capability();
    let mut lines =
        vec![format!("GPU {}: {}.{}, {} bytes, {}", device.ordinal(), has.major, has.minor, has.shared_optin_bytes, has.multiprocessors)];
    for (dtype, mask, shift) in problems() {
        lines.push(format!("problem {} {} {shift}", dtype as u32 + 1, mask as u32));
        let shape = Shape { batch: 3, q_len: 100, kv_len: 200, q_heads: 8, kv_heads: 2, head_dim: 128 };
        let strides = |batch, seq, head| Strides { batch, seq, head };
        let builder = Problem::prefill(dtype, shape).mask(mask).scale(0.25);
        let builder = builder.q_strides(strides(1_000_000, 2000, 136)).k_strides(strides(3_000_000, 144, 40_000));
        let builder = builder.v_strides(strides(5_000_000, 152, 48_000)).o_strides(strides(7_000_000, 8000, 160));
        let causal = mask == Mask::Causal;
        let problem = if causal { builder.with_lse() } else { builder }.build().expect("legal");
        let [q, k, v, o] = [0x10_0000_0000 + shift, 0x20_0000_0000, 0x30_0000_0000, 0x40_0000_0000];
        let pointers = Pointers { q, k, v, o, lse: causal.then_some(0x50_0000_0000) };
        let before = fake.calls("cuModuleLoadDataEx");
        let schedule = device.supports(&problem).map(|choice| choice.entry.schedule);
        let by_map = schedule.is_ok_and(|schedule| schedule.boxes().is_some()) && shift == 0;
        if by_map {
            fake.expect_params::<[u8; MAPS_BYTES]>()
        } else {
            fake.expect_params::<[u8; GRID_BYTES]>()
        }
        device.set_programmatic_launch(causal);
        // SAFETY: the fake driver accesses neither the tensors nor the stream.
        match unsafe { device.launch(&problem, pointers, std::ptr::without_provenance_mut(0x50)) } {
            Err(error) => lines.push(error.to_string()),
            Ok(launched) => {
                lines.push(kernel_line(launched.choice.entry, launched.choice.code));
                // In C a warm-up comes first, and loads what the launch loaded here.
                lines.push(format!("warm up 0, loads {}", fake.calls("cuModuleLoadDataEx") - before));
                lines.push("prefill 0, loads 0".to_owned());
                lines.push(if by_map { launch_line::<MAPS_BYTES>(fake) } else { launch_line::<GRID_BYTES>(fake) });
            }
        }
    }
    lines
}

fn problems() -> Vec<(DType, Mask, u64)> {
    let dtypes = [DType::F16, DType::BF16, DType::F32];
    let masks = dtypes.into_iter().flat_map(|dtype| [Mask::Full, Mask::Causal].map(|mask| (dtype, mask)));
    masks.flat_map(|(dtype, mask)| [0, 2, 4].map(|shift| (dtype, mask, shift))).collect()
}

fn kernel_line(entry: &Entry, code: Code) -> String {
    let cubins: Vec<_> = entry.cubins.iter().map(|cubin| cubin.arch.to_string()).collect();
    let group = if let Group::Packed(group) = entry.group { group } else { 0 };
    let masks = match entry.mask {
        MaskSupport::Any => 3,
        MaskSupport::Causal => 2,
        MaskSupport::Full => 1,
    };
    let Entry { name, family, models, dtype, head_dim, v_head_dim, copy_bytes, block_q, block_kv, threads, shared_bytes, .. } = *entry;
    let (dtype, has_ptx, code) = (dtype as u32 + 1, u32::from(entry.ptx.is_some()), if matches!(code, Code::Cubin(_)) { 1 } else { 2 });
    format!(
        "kernel {name}; {family}; {models}; {}; {dtype} {head_dim} {v_head_dim} {group} {masks} {copy_bytes} {block_q} {block_kv} {threads} \
         {shared_bytes} {has_ptx}; code {code}",
        cubins.join(" ")
    )
}

/// Bytes of the parameters up to the last field: of kernels that have a block for each tile, and of those that take maps.
const GRID_BYTES: usize = offset_of!(PrefillParams, scale_log2) + size_of::<f32>();
const MAPS_BYTES: usize = offset_of!(PrefillTmaParams, scale_log2) + size_of::<f32>();

fn launch_line<const BYTES: usize>(fake: &Fake) -> String {
    let (launch, params) = fake.last_launch::<[u8; BYTES]>().expect("a launch");
    let sizes = launch.sizes.map(|size| size.to_string()).join(" ");
    let ready = u32::from(launch.context_is_current && launch.is_ready);
    let params: String = params.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("launch {sizes} stream {} ready {ready} {params}", launch.stream)
}

#[test]
fn threads_streams_and_contexts_do_not_disturb_each_other() {
    let dir = folder("stress");
    let cc = cc().get_program().to_string_lossy().into_owned();
    let library = built_library(&dir);
    let include = Path::new(ROOT).join("include");
    let program = compile(&cc, ("c99", "c"), "examples/c/stress.c", &include, &library, dir.join("stress"));
    let told = run(&mut Command::new(program));
    if told.contains("Nothing was executed") {
        skipped("threads_streams_and_contexts_do_not_disturb_each_other: no GPU");
        assert!(env::var_os("ATTNPACK_REQUIRE_GPU").is_none(), "ATTNPACK_REQUIRE_GPU is set:\n{told}");
    } else {
        assert!(told.contains(" 0 of them failed"), "{told}");
    }
}
