//! A folder of assembled cubins, addressed by all that went into them.

use std::collections::{BTreeSet, hash_map::RandomState};
use std::fs;
use std::hash::{BuildHasher, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, Result};

use super::create_dir;
use super::manifest::Arch;

/// First line of an entry. Another layout gets another number.
const MAGIC: &str = "attnpack-cubin 1";

/// What ptxas made of one input: it is judged anew whenever it is used, so the rules are not part of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assembly {
    /// The cubin.
    pub image: Vec<u8>,
    /// What ptxas said of it.
    pub said: String,
}

/// The folder. Any number of processes may use it at a time.
pub struct Cache {
    dir: PathBuf,
    used: Mutex<BTreeSet<String>>,
}

impl Cache {
    /// Opens a folder, made if it is missing.
    pub fn open(dir: &Path) -> Result<Self> {
        create_dir(dir)?;
        Ok(Cache { dir: dir.to_owned(), used: Mutex::default() })
    }

    /// The entry of `key`. One that is missing, cut short or otherwise damaged is `None`.
    pub fn get(&self, key: &str) -> Option<Assembly> {
        self.note(key);
        decode(&fs::read(self.dir.join(key)).ok()?)
    }

    /// Stores an entry: written beside its place, then moved there, so that a reader sees all of it or nothing.
    pub fn put(&self, key: &str, assembly: &Assembly) -> Result<()> {
        self.note(key);
        let place = self.dir.join(key);
        let beside = self.dir.join(format!("{key}.{:016x}.new", RandomState::new().build_hasher().finish()));
        fs::write(&beside, encode(assembly)).with_context(|| format!("cannot write to the cache: {}", beside.display()))?;
        let Err(error) = fs::rename(&beside, &place) else { return Ok(()) };
        let _ = fs::remove_file(&beside);
        // Windows refuses while another process reads the entry, which then is as good as ours.
        if self.get(key).is_some() {
            return Ok(());
        }
        Err(error).with_context(|| format!("cannot write to the cache: {}", place.display()))
    }

    /// Removes everything that this build did not use.
    pub fn remove_unused(&self) -> Result<()> {
        let used = self.used.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for entry in fs::read_dir(&self.dir).with_context(|| format!("cannot list {}", self.dir.display()))? {
            let entry = entry?;
            if !used.contains(&*entry.file_name().to_string_lossy()) {
                fs::remove_file(entry.path()).with_context(|| format!("cannot remove {}", entry.path().display()))?;
            }
        }
        Ok(())
    }

    fn note(&self, key: &str) {
        self.used.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(key.to_owned());
    }
}

/// The key of an entry: a hash of all that ptxas makes it of, of which no part can be mistaken for two others.
/// `banner` is what ptxas says about itself, its full version included.
pub fn key(ptx: &str, banner: &str, arch: Arch, flags: &[&str]) -> String {
    let mut hash = Hash::default();
    for part in [ptx, banner, &arch.to_string()].iter().chain(flags) {
        hash.add(&(part.len() as u64).to_le_bytes());
        hash.add(part.as_bytes());
    }
    format!("{:032x}", hash.0)
}

/// FNV-1a with 128 bits. The cache guards against accidents: who may write to it may replace a cubin anyway.
struct Hash(u128);

impl Default for Hash {
    fn default() -> Self {
        Hash(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }
}

impl Hash {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
}

/// `MAGIC`, hash of what follows the line's end, length of the report: one line. Then the report and the cubin.
fn encode(assembly: &Assembly) -> Vec<u8> {
    let body = [assembly.said.as_bytes(), &assembly.image].concat();
    let mut hash = Hash::default();
    hash.add(&body);
    let mut entry = format!("{MAGIC} {:032x} {}\n", hash.0, assembly.said.len()).into_bytes();
    entry.extend(body);
    entry
}

fn decode(entry: &[u8]) -> Option<Assembly> {
    let end = entry.iter().position(|byte| *byte == b'\n')?;
    let head = std::str::from_utf8(&entry[..end]).ok()?.strip_prefix(MAGIC)?;
    let (wanted, said_len) = head.trim().split_once(' ')?;
    let body = &entry[end + 1..];
    let mut hash = Hash::default();
    hash.add(body);
    if format!("{:032x}", hash.0) != wanted {
        return None;
    }
    let (said, image) = body.split_at_checked(said_len.parse().ok()?)?;
    Some(Assembly { image: image.to_vec(), said: String::from_utf8(said.to_vec()).ok()? })
}
