//! Spans of the `tracing` crate, where the feature of that name is on.

/// Opens a span that ends with the enclosing block: `span!("epoch", epoch = 3);`. Its level is DEBUG and its target the module's path. The
/// fields are not evaluated without the feature.
#[cfg(feature = "tracing")]
macro_rules! span {
    ($name:literal $(, $($fields:tt)*)?) => {
        let _span = ::tracing::debug_span!($name $(, $($fields)*)?).entered();
    };
}

/// Nothing, without the feature `tracing`.
#[cfg(not(feature = "tracing"))]
macro_rules! span {
    ($($any:tt)*) => {};
}

pub(crate) use span;
