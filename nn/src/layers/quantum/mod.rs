//! States of qubits.

pub(crate) mod circuit;
pub(crate) mod measurement;
