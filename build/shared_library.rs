//! How the shared library for C hosts is linked: its SONAME, and no other library than libc beside it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::settings::{Settings, SharedLibrary};
use super::{create_dir, write_file};

/// Where compilers of GNU keep their own libraries: `TRIPLE/VERSION` below one of these.
const GCC: [&str; 3] = ["/usr/lib/gcc", "/usr/lib64/gcc", "/usr/local/lib/gcc"];

/// Arguments for the linker.
///
/// Cargo sets no SONAME (cargo#5045). Rust's standard library unwinds through `libgcc_s`, which small containers lack: where
/// the static form of the same code is found, a linker script of the name `libgcc_s.so` puts it in place.
pub fn link_args(settings: &Settings) -> Result<Vec<String>> {
    let Some(SharedLibrary { soname, native }) = &settings.shared_library else { return Ok(Vec::new()) };
    let mut args = vec![format!("-Wl,-soname,{soname}")];
    if let Some(unwinder) = native.then(|| find_unwinder(&GCC.map(Path::new))).flatten() {
        let folder = settings.out("link");
        create_dir(&folder)?;
        write_file(&folder.join("libgcc_s.so"), format!("INPUT({})\n", unwinder.display()))?;
        args.push(format!("-L{}", folder.display()));
    }
    Ok(args)
}

/// `libgcc_eh.a` of this machine's own GCC; of the newest, where there are several.
fn find_unwinder(roots: &[&Path]) -> Option<PathBuf> {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect::<Vec<_>>();
    let triples = roots.iter().flat_map(|root| entries(root));
    let own = triples.filter(|triple| triple.file_name().is_some_and(|name| name.to_string_lossy().starts_with(std::env::consts::ARCH)));
    let found = own.flat_map(|triple| entries(&triple)).map(|version| version.join("libgcc_eh.a")).filter(|file| file.is_file());
    found.max_by_key(|file| version_of(file))
}

/// The number that the folder of a file begins with.
fn version_of(file: &Path) -> u32 {
    let folder = file.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    folder.split('.').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}
