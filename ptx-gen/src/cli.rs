//! The generator's command line: `list`, `show` and `emit`.

use std::fs;
use std::io::Write;
use std::path::Path;

use crate::variant::Variant;
use crate::{manifest, params, table};

const USAGE: &str = "usage:
  ptx-gen list                       every variant and the models it serves
  ptx-gen show NAME                  the PTX of a variant, with the Rust origin of each instruction
  ptx-gen emit --out DIR [--archs sm_80,sm_90] [--variants GLOB,GLOB]
                                     write DIR/NAME.ptx for each variant, DIR/params.rs and DIR/manifest.txt
  --archs     only variants that serve one of these architectures, and the portable ones
  --variants  only variants whose name matches a pattern (* stands for any text)";

/// Runs one command; `args` are the arguments without the program's name. What it prints goes to `out`.
///
/// # Errors
/// A message for the user: an unknown command, variant, architecture or pattern, or a file that cannot be written.
pub fn run(args: &[String], out: &mut dyn Write) -> Result<(), String> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["list"] => print(out, &list()),
        ["show", name] => print(out, &show(name)?),
        ["emit", options @ ..] => emit(&Options::parse(options)?),
        ["help" | "--help" | "-h"] => print(out, &format!("{USAGE}\n")),
        _ => Err(USAGE.to_owned()),
    }
}

/// A reader that stops early (`ptx-gen list | head`) is not an error.
fn print(out: &mut dyn Write, text: &str) -> Result<(), String> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(format!("cannot write: {e}")),
        _ => Ok(()),
    }
}

fn list() -> String {
    let mut text = format!("{:<52} {:>9} {:>8} {:>7}  {:<38} models\n", "variant", "tile", "threads", "shared", "cubins");
    for v in table::variants() {
        let (t, cubins) = (&v.tiling, v.archs().collect::<Vec<_>>().join(" "));
        text.push_str(&format!(
            "{:<52} {:>9} {:>8} {:>7}  {:<38} {}\n",
            v.name(),
            format!("{}x{}", t.block_q, t.block_kv),
            t.threads(),
            v.shared_bytes(),
            cubins,
            v.models
        ));
    }
    text
}

fn show(name: &str) -> Result<String, String> {
    let variants = table::variants();
    let variant = variants.iter().find(|v| v.name() == name);
    let variant = variant.ok_or_else(|| format!("no variant is named '{name}'; `ptx-gen list` prints all"))?;
    Ok(variant.build().emit()?.ptx)
}

struct Options {
    out: String,
    archs: Vec<String>,
    patterns: Vec<String>,
}

impl Options {
    fn parse(words: &[&str]) -> Result<Self, String> {
        let (mut out, mut archs, mut patterns) = (None, Vec::new(), Vec::new());
        let mut words = words.iter();
        while let Some(option) = words.next() {
            let value = words.next().ok_or_else(|| format!("{option} needs a value\n{USAGE}"))?;
            let list = || value.split(',').map(str::trim).filter(|s| !s.is_empty()).map(str::to_owned).collect();
            match *option {
                "--out" => out = Some((*value).to_owned()),
                "--archs" => archs = list(),
                "--variants" => patterns = list(),
                _ => return Err(format!("unknown option {option}\n{USAGE}")),
            }
        }
        let out = out.ok_or_else(|| format!("emit needs --out DIR\n{USAGE}"))?;
        Ok(Options { out, archs, patterns })
    }

    /// The variants asked for. Every architecture and pattern must mean something.
    fn select(&self) -> Result<Vec<Variant>, String> {
        let mut variants = table::variants();
        for arch in &self.archs {
            if !variants.iter().any(|v| serves(v, arch)) {
                return Err(format!("no variant serves the architecture '{arch}'; `ptx-gen list` prints those that exist"));
            }
        }
        for pattern in &self.patterns {
            if !variants.iter().any(|v| matches(pattern, &v.name())) {
                let names: Vec<_> = variants.iter().map(Variant::name).collect();
                return Err(format!("no variant matches '{pattern}'; there are:\n  {}", names.join("\n  ")));
            }
        }
        let archs = &self.archs;
        variants.retain(|v| archs.is_empty() || v.is_portable() || archs.iter().any(|a| serves(v, a)));
        let patterns = &self.patterns;
        variants.retain(|v| patterns.is_empty() || patterns.iter().any(|p| matches(p, &v.name())));
        if variants.is_empty() {
            return Err(format!(
                "no variant serves {} and matches {}; `ptx-gen list` prints what each serves",
                archs.join(" or "),
                patterns.join(" or ")
            ));
        }
        Ok(variants)
    }
}

fn serves(variant: &Variant, arch: &str) -> bool {
    // A feature names no architecture-specific code: `sm_90` covers sm_90a.
    variant.archs().any(|served| served.strip_suffix('a').unwrap_or(served) == arch)
}

/// Whether `name` matches `pattern`, in which `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => {
            name.strip_prefix(head).is_some_and(|rest| (0..=rest.len()).any(|i| rest.is_char_boundary(i) && matches(tail, &rest[i..])))
        }
    }
}

fn emit(options: &Options) -> Result<(), String> {
    let dir = Path::new(&options.out);
    let write = |file: &str, text: &str| {
        let path = dir.join(file);
        fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
    };
    let variants = options.select()?;
    fs::create_dir_all(dir).map_err(|e| format!("cannot create {}: {e}", dir.display()))?;
    let mut lines = manifest::header();
    for variant in &variants {
        let text = variant.build().emit()?;
        write(&format!("{}.ptx", variant.name()), &text.ptx)?;
        lines.push_str(&manifest::line(variant, text.version));
    }
    write("params.rs", &params::rust_source())?;
    // Last: a manifest means that everything it names is there.
    write("manifest.txt", &lines)
}
