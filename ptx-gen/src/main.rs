//! The generator binary. See `ptx_gen::cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match ptx_gen::cli::run(&args, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("ptx-gen: {message}");
            ExitCode::FAILURE
        }
    }
}
