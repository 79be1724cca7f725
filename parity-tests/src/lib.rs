//! Parity and golden tests.
