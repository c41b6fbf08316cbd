//! The enumerations of the header that C hosts pass, or get: numbers, names and what they stand for.

use super::fault::Fault;
use crate::dispatch::{Code, Policy};
use crate::shape::{DType, Mask};

/// An enumeration.
pub(super) struct Values<T: 'static> {
    /// Its name in C.
    pub(super) name: &'static str,
    /// Number, name and meaning of each value. In C the name has that of the enumeration before it.
    pub(super) all: &'static [(u32, &'static str, T)],
}

pub(super) const DTYPES: Values<DType> =
    Values { name: "attnpack_dtype", all: &[(1, "F16", DType::F16), (2, "BF16", DType::BF16), (3, "F32", DType::F32)] };

pub(super) const MASKS: Values<Mask> = Values { name: "attnpack_mask", all: &[(0, "FULL", Mask::Full), (1, "CAUSAL", Mask::Causal)] };

pub(super) const POLICIES: Values<Policy> =
    Values { name: "attnpack_policy", all: &[(0, "CUBIN_FIRST", Policy::CubinFirst), (1, "CUBIN_ONLY", Policy::CubinOnly)] };

pub(super) const CODES: Values<CodeKind> =
    Values { name: "attnpack_code", all: &[(1, "CUBIN", CodeKind::Cubin), (2, "PTX", CodeKind::Ptx)] };

/// No enumeration of the header, but checked like one: what further numbers mean is for later versions to say.
pub(super) const PROGRAMMATIC_LAUNCH: Values<bool> =
    Values { name: "value of programmatic_launch", all: &[(0, "no", false), (1, "yes", true)] };

/// A [`Code`] without the code.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum CodeKind {
    Cubin,
    Ptx,
}

impl From<Code> for CodeKind {
    fn from(code: Code) -> Self {
        match code {
            Code::Cubin(_) => CodeKind::Cubin,
            Code::Ptx(_) => CodeKind::Ptx,
        }
    }
}

impl<T: Copy + PartialEq> Values<T> {
    /// What a number stands for.
    pub(super) fn of(&self, number: u32) -> Result<T, Fault> {
        let found = self.all.iter().find(|(known, ..)| *known == number);
        found.map(|&(.., value)| value).ok_or_else(|| {
            let known: Vec<_> = self.all.iter().map(|(number, name, _)| format!("{number} ({name})")).collect();
            Fault::enum_value(self.name, number, &known.join(", "))
        })
    }

    /// The number for a value. Every value has one: `header.rs` tests it.
    pub(super) fn number(&self, value: T) -> u32 {
        self.all.iter().find(|(.., known)| *known == value).map_or(u32::MAX, |(number, ..)| *number)
    }
}
