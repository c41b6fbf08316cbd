//! For the tests of the build: the build script as a module, and the ptxas of this machine.

#[path = "../../build.rs"]
#[allow(dead_code, reason = "no test uses all of it")]
pub mod script;
#[cfg(unix)]
#[allow(dead_code, reason = "no test uses all of it")]
pub mod scripts;

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

use script::build::ptxas::{self, Found, Ptxas};
use script::build::settings::Settings;

/// A folder for one test, empty.
pub fn empty_folder(name: &str) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("build").join(name);
    if dir.exists() {
        fs::remove_dir_all(&dir).unwrap();
    }
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// The ptxas that the build would use here. Without one the test is skipped, in one visible line; under
/// `ATTNPACK_STRICT=1` it fails.
#[allow(dead_code, reason = "not every test needs it")]
pub fn real_ptxas(test: &str) -> Option<Ptxas> {
    let out_dir = (OsString::from("OUT_DIR"), env::temp_dir().into_os_string());
    let settings = Settings::from_vars(env::vars_os().chain([out_dir])).unwrap();
    match ptxas::find(&settings).unwrap() {
        Found::Ptxas(ptxas) => Some(ptxas),
        _ if settings.strict => panic!("{test} needs ptxas, and ATTNPACK_STRICT=1 demands it"),
        _ => {
            // Not eprintln: the test harness would hide it.
            let _ = writeln!(std::io::stderr(), "SKIPPED {test}: no ptxas found");
            None
        }
    }
}
