//! Programs that tests put in the place of the build's tools.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Writes a shell script.
pub fn write_script(path: &Path, commands: &str) {
    fs::write(path, format!("#!/bin/sh\n{commands}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Writes a ptxas that knows sm_80, sm_90 and sm_90a, obeys words in the PTX (`spill N`, `loss`, `warn`, `silent`,
/// `bad_instruction`) and appends to `log` what it assembles. A script `PATH.probe` beside it plays its probe.
pub fn fake_ptxas(path: &Path, version: &str, log: &Path) {
    let release = version.rsplit_once('.').unwrap().0;
    let commands = include_str!("fake_ptxas.sh");
    let commands = commands.replace("@RELEASE@", release).replace("@VERSION@", version);
    write_script(path, &commands.replace("@LOG@", &log.display().to_string()));
}
