//! Shapes to time: compact on the command line, or from a JSON file.

#![allow(dead_code, reason = "the tests use a part")]

use std::fmt;

use attnpack::{DType, Error, Mask, Problem, Shape};
use serde_json::{Value, json};

/// What is timed.
pub struct BenchShape {
    /// Name of the set that it belongs to; empty on the command line.
    pub set: String,
    shape: Shape,
    mask: Mask,
    dtype: DType,
}

impl BenchShape {
    /// Reads `b=1,q=2048,kv=2048,h=32/8,d=128,causal,bf16`.
    ///
    /// # Errors
    /// What cannot be understood, or is missing.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut batch, mut kv_len, mut mask, mut dtype) = (1, None, Mask::Causal, DType::BF16);
        let (mut q_len, mut heads, mut head_dim) = (None, None, None);
        let number = |value: &str| value.parse::<u32>().map_err(|_| format!("'{value}' in '{text}' is no number"));
        for word in text.split(',') {
            match word.split_once('=').unwrap_or((word, "")) {
                ("b", value) => batch = number(value)?,
                ("q", value) => q_len = Some(number(value)?),
                ("kv", value) => kv_len = Some(number(value)?),
                ("h", value) => {
                    let (q_heads, kv_heads) = value.split_once('/').unwrap_or((value, value));
                    heads = Some((number(q_heads)?, number(kv_heads)?));
                }
                ("d", value) => head_dim = Some(number(value)?),
                ("causal", "") => mask = Mask::Causal,
                ("full", "") => mask = Mask::Full,
                (name, "") => dtype = dtype_named(name).ok_or_else(|| format!("'{name}' in '{text}' means nothing"))?,
                (name, _) => return Err(format!("'{name}' in '{text}' means nothing")),
            }
        }
        let missing = |what: &str| format!("'{text}' does not say {what}");
        let q_len = q_len.ok_or_else(|| missing("q"))?;
        let (q_heads, kv_heads) = heads.ok_or_else(|| missing("h"))?;
        let head_dim = head_dim.ok_or_else(|| missing("d"))?;
        let shape = Shape { batch, q_len, kv_len: kv_len.unwrap_or(q_len), q_heads, kv_heads, head_dim };
        Ok(BenchShape { set: String::new(), shape, mask, dtype })
    }

    /// Reads a file for [`BenchShape::from_json_text`].
    ///
    /// # Errors
    /// The file cannot be read, or what is in it is wrong.
    pub fn read_json(path: &str) -> Result<Vec<Self>, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"))?;
        Self::from_json_text(&text).map_err(|error| format!("{path}: {error}"))
    }

    /// Reads a list of objects with the fields b, sq, sk, hq, hk, d, causal, dtype, and set if they are to be chosen by it.
    ///
    /// # Errors
    /// The text is no such list.
    pub fn from_json_text(text: &str) -> Result<Vec<Self>, String> {
        let values: Vec<Value> = serde_json::from_str(text).map_err(|error| error.to_string())?;
        values.iter().map(|value| Self::from_json(value).map_err(|error| format!("{error} in {value}"))).collect()
    }

    fn from_json(value: &Value) -> Result<Self, String> {
        let number = |name: &str| {
            let number = value[name].as_u64().and_then(|number| u32::try_from(number).ok());
            number.ok_or_else(|| format!("no number {name}"))
        };
        let shape = Shape {
            batch: number("b")?,
            q_len: number("sq")?,
            kv_len: number("sk")?,
            q_heads: number("hq")?,
            kv_heads: number("hk")?,
            head_dim: number("d")?,
        };
        let dtype = value["dtype"].as_str().and_then(dtype_named).ok_or("no dtype f16, bf16 or f32")?;
        let mask = if value["causal"].as_bool().ok_or("no causal")? { Mask::Causal } else { Mask::Full };
        Ok(BenchShape { set: value["set"].as_str().unwrap_or_default().to_owned(), shape, mask, dtype })
    }

    /// The fields that `read_json` reads.
    pub fn to_json(&self) -> Value {
        let Shape { batch, q_len, kv_len, q_heads, kv_heads, head_dim } = self.shape;
        json!({
            "set": self.set, "b": batch, "sq": q_len, "sk": kv_len, "hq": q_heads, "hk": kv_heads, "d": head_dim,
            "causal": self.mask == Mask::Causal, "dtype": self.dtype.to_string(),
        })
    }

    /// The problem, contiguous.
    ///
    /// # Errors
    /// The library's: the shape is illegal.
    pub fn problem(&self) -> Result<Problem, Error> {
        Problem::prefill(self.dtype, self.shape).mask(self.mask).build()
    }

    /// Floating-point operations: 4 * head_dim for each visible pair of query and key of each head.
    pub fn flop(&self) -> f64 {
        let Shape { batch, q_len, kv_len, q_heads, head_dim, .. } = self.shape;
        let (q_len, kv_len) = (f64::from(q_len), f64::from(kv_len));
        let pairs = match self.mask {
            Mask::Full => q_len * kv_len,
            Mask::Causal if kv_len >= q_len => q_len * kv_len - q_len * (q_len - 1.0) / 2.0,
            Mask::Causal => kv_len * (kv_len + 1.0) / 2.0,
        };
        4.0 * f64::from(batch) * f64::from(q_heads) * f64::from(head_dim) * pairs
    }
}

fn dtype_named(name: &str) -> Option<DType> {
    [DType::F16, DType::BF16, DType::F32].into_iter().find(|dtype| dtype.to_string() == name)
}

impl fmt::Display for BenchShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { batch, q_len, kv_len, q_heads, kv_heads, head_dim } = self.shape;
        let text = format!("b={batch},q={q_len},kv={kv_len},h={q_heads}/{kv_heads},d={head_dim},{},{}", self.mask, self.dtype);
        f.pad(&text)
    }
}
