//! Named reference models on the public interface of this crate.
