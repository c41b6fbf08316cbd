//! The generator's manifest: what the build knows of the kernels.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail, ensure};

/// What the generator and this build must agree on.
#[derive(Clone, Copy, Debug)]
pub struct Contract {
    /// Format of the manifest.
    pub format: u32,
    /// Hash of the kernels' parameter layout.
    pub params_hash: u64,
}

/// A GPU architecture, as ptxas names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arch {
    /// Compute capability, major.
    pub major: u32,
    /// Compute capability, minor.
    pub minor: u32,
    /// The `a` of `sm_90a`: code that runs on this capability only.
    pub specific: bool,
}

impl Arch {
    /// Reads `sm_90` or `sm_90a`.
    pub fn parse(name: &str) -> Result<Self> {
        let number = name.strip_prefix("sm_").unwrap_or_default();
        let digits = number.strip_suffix('a').unwrap_or(number);
        let is_number = digits.len() >= 2 && digits.bytes().all(|b| b.is_ascii_digit());
        ensure!(is_number, "'{name}' is no architecture: expected sm_80 or sm_90a, for example");
        let (major, minor) = digits.split_at(digits.len() - 1);
        Ok(Arch { major: major.parse()?, minor: minor.parse()?, specific: digits != number })
    }

    /// The Cargo feature that enables it: the name without the `a`.
    pub fn feature(self) -> Arch {
        Arch { specific: false, ..self }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}{}", self.major, self.minor, if self.specific { "a" } else { "" })
    }
}

/// Query heads per KV head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// This ratio only.
    Packed(u32),
    /// A launch parameter.
    Any,
}

/// Masks that a kernel serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mask {
    /// The causal one.
    Causal,
    /// None: every key is visible.
    Full,
    /// Both, by a launch parameter.
    Any,
}

/// How a kernel's tiles are shared out among blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// A block for each tile.
    Grid,
    /// Blocks that stay and claim tiles; the boxes of the tensor maps of q, k, v and o, and the size of the clusters whose blocks
    /// take neighbouring tiles together.
    Persistent([TensorBox; 4], u32),
    /// A cluster of blocks for each tile; the boxes likewise, and the sizes that a cluster can have.
    Split([TensorBox; 4], Vec<u32>),
}

/// A box of a tensor map: columns, rows and chunks.
pub type TensorBox = [u32; 3];

/// One kernel. What the fields mean at launch is said in `src/catalog.rs`, where they end up.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Name of the entry point and of the files.
    pub name: String,
    /// Kernel family, in snake case.
    pub family: String,
    /// Element type: f16, bf16 or f32.
    pub dtype: String,
    /// Elements of a head of q and k.
    pub head_dim: u32,
    /// Elements of a head of v and o.
    pub v_head_dim: u32,
    /// Query heads per KV head that it serves.
    pub group: Group,
    /// Masks that it serves.
    pub mask: Mask,
    /// Alignment that row starts need.
    pub copy_bytes: u32,
    /// Rows of a tile.
    pub block_q: u32,
    /// Keys of a step.
    pub block_kv: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Blocks for which a multiprocessor has room.
    pub blocks_per_sm: u32,
    /// How its tiles are shared out.
    pub schedule: Schedule,
    /// Largest spill, stores and loads in bytes, that ptxas may report.
    pub spill_bytes: u32,
    /// `.version` of the PTX.
    pub ptx_version: (u32, u32),
    /// `.target` of the PTX.
    pub target: Arch,
    /// Architectures to build cubins for, where their feature is enabled.
    pub archs: Vec<Arch>,
    /// Whether its PTX is always embedded.
    pub portable: bool,
    /// Models that it serves.
    pub models: String,
}

/// Reads a manifest. Fields that this build has no use for are passed over: another format number, not another
/// field, tells of a change that matters.
///
/// # Errors
/// Another format or parameter layout than `contract`'s, and a field that is missing or not understood.
pub fn parse(text: &str, contract: &Contract) -> Result<Vec<Variant>> {
    let mut lines = text.lines();
    let format: u32 = header(lines.next(), "attnpack-manifest")?.parse().context("the format is not a number")?;
    ensure!(
        format == contract.format,
        "the generator writes manifest format {format}, this build reads format {}: take both from the same release",
        contract.format
    );
    let hash = header(lines.next(), "params")?;
    let expected = format!("{:016x}", contract.params_hash);
    ensure!(
        hash == expected,
        "the generator's kernels take parameters of layout {hash}, this build passes layout {expected}: take both from the same release"
    );
    let mut variants = Vec::new();
    let mut names = BTreeSet::new();
    for (index, line) in lines.enumerate() {
        let variant = variant(line).with_context(|| format!("line {} of the manifest", index + 3))?;
        ensure!(names.insert(variant.name.clone()), "the manifest names {} twice", variant.name);
        variants.push(variant);
    }
    ensure!(!variants.is_empty(), "the manifest names no kernel");
    Ok(variants)
}

fn header<'a>(line: Option<&'a str>, key: &str) -> Result<&'a str> {
    let value = line.and_then(|line| line.strip_prefix(key)).and_then(|rest| rest.strip_prefix('\t'));
    value.with_context(|| format!("expected a line '{key}<tab>…' at the top of the manifest"))
}

fn variant(line: &str) -> Result<Variant> {
    let mut words = line.split('\t');
    ensure!(words.next() == Some("variant"), "expected 'variant', found '{line}'");
    let mut fields = Fields::default();
    for word in words {
        let (key, value) = word.split_once('=').with_context(|| format!("expected key=value, found '{word}'"))?;
        ensure!(fields.0.insert(key, value).is_none(), "{key} appears twice");
    }
    Ok(Variant {
        name: fields.word("name")?.to_owned(),
        family: fields.word("family")?.to_owned(),
        dtype: fields.word("dtype")?.to_owned(),
        head_dim: fields.number("head_dim")?,
        v_head_dim: fields.number("value_dim")?,
        group: match fields.get("group")? {
            "any" => Group::Any,
            ratio => Group::Packed(ratio.parse().with_context(|| format!("group={ratio}"))?),
        },
        mask: match fields.get("mask")? {
            "causal" => Mask::Causal,
            "full" => Mask::Full,
            "any" => Mask::Any,
            other => bail!("mask={other}: expected causal, full or any"),
        },
        copy_bytes: fields.number("copy_bytes")?,
        block_q: fields.number("block_q")?,
        block_kv: fields.number("block_kv")?,
        threads: fields.number("threads")?,
        shared_bytes: fields.number("shared_bytes")?,
        blocks_per_sm: fields.number("blocks_per_sm")?,
        schedule: schedule(fields.get("launch")?)?,
        spill_bytes: fields.number("spill_bytes")?,
        ptx_version: ptx_version(fields.get("ptx_version")?)?,
        target: Arch::parse(fields.get("target")?)?,
        archs: fields.get("archs")?.split(',').map(Arch::parse).collect::<Result<_>>()?,
        portable: fields.choice("portable", "0", "1")?,
        models: fields.get("models")?.to_owned(),
    })
}

/// `grid`; `persistent:1:64x128x2,64x128x2,64x128x2,64x16x2`; or `split:1,2,4,8:` and boxes.
fn schedule(text: &str) -> Result<Schedule> {
    match text.split(':').collect::<Vec<_>>()[..] {
        ["grid"] => Ok(Schedule::Grid),
        ["persistent", cluster, boxes] => {
            let expected = || format!("launch={text}: '{cluster}': expected the size of a cluster, 1 to {MOST_BLOCKS} blocks");
            let blocks = cluster_size(cluster).with_context(expected)?;
            Ok(Schedule::Persistent(four_boxes(boxes)?, blocks))
        }
        ["split", clusters, boxes] => {
            let clusters = cluster_sizes(clusters)?;
            Ok(Schedule::Split(four_boxes(boxes)?, clusters))
        }
        _ => bail!("launch={text}: expected grid, persistent:… or split:…"),
    }
}

/// The most blocks that a cluster can have on every GPU (CUDA programming guide, "Thread Block Clusters").
const MOST_BLOCKS: u32 = 8;

fn cluster_size(text: &str) -> Option<u32> {
    text.parse().ok().filter(|blocks| (1..=MOST_BLOCKS).contains(blocks))
}

fn cluster_sizes(text: &str) -> Result<Vec<u32>> {
    let sizes: Option<Vec<u32>> = text.split(',').map(cluster_size).collect();
    sizes.with_context(|| format!("launch: '{text}': expected sizes of clusters such as 1,2,4, of 1 to {MOST_BLOCKS} blocks"))
}

fn four_boxes(text: &str) -> Result<[TensorBox; 4]> {
    let sizes = |text: &str| text.split('x').map(|size| size.parse().ok()).collect::<Option<Vec<u32>>>()?.try_into().ok();
    let boxes: Option<Vec<TensorBox>> = text.split(',').map(sizes).collect();
    boxes.and_then(|boxes| boxes.try_into().ok()).with_context(|| format!("launch: '{text}': expected four boxes such as 64x128x2"))
}

fn ptx_version(text: &str) -> Result<(u32, u32)> {
    let parts = text.split_once('.').with_context(|| format!("ptx_version={text}"))?;
    Ok((parts.0.parse()?, parts.1.parse()?))
}

/// The fields of a line.
#[derive(Default)]
struct Fields<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Fields<'a> {
    fn get(&self, key: &str) -> Result<&'a str> {
        self.0.get(key).copied().with_context(|| format!("the field '{key}' is missing"))
    }

    fn number<T: FromStr>(&self, key: &str) -> Result<T> {
        let value = self.get(key)?;
        value.parse().map_err(|_| anyhow!("{key}={value} is not a number"))
    }

    /// A name: it becomes part of file names and of Rust source.
    fn word(&self, key: &str) -> Result<&'a str> {
        let value = self.get(key)?;
        let is_word = value.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        ensure!(is_word && value.starts_with(|c: char| c.is_ascii_lowercase()), "{key}={value} is not a lower-case name");
        Ok(value)
    }

    /// Whether the field has the value `yes`; the only other one is `no`.
    fn choice(&self, key: &str, no: &str, yes: &str) -> Result<bool> {
        let value = self.get(key)?;
        ensure!(value == yes || value == no, "{key}={value}: expected {no} or {yes}");
        Ok(value == yes)
    }
}
