//! The part of HIP and hiprtc that a compute library needs, resolved at run time.
//!
//! Nothing of AMD's is needed to build or to start a program that uses this crate: [`Hip::load`] and [`Hiprtc::load`] open the libraries
//! with the system's loader and answer with a [`LoadError`] where they are missing. Functions, types and constants keep the names of
//! AMD's headers, so AMD's documentation applies. Only what has had one binary form from ROCm 5.2 to 7 is bound; the one property
//! structure that changed between them is never declared, see [`Hip::arch_name`].
//!
//! ```
//! match hip_sys::Hip::load() {
//!     Ok(hip) => {
//!         let mut n = 0;
//!         // SAFETY: `n` is a valid place for the count.
//!         let status = unsafe { hip.hipGetDeviceCount(&mut n) };
//!         println!("{}: {n} devices ({})", hip.library(), hip.error_name(status));
//!     }
//!     Err(e) => println!("no HIP here: {e}"),
//! }
//! ```
//!
//! | Variable | Meaning |
//! |---|---|
//! | `TREFOIL_HIP_LIB` | Path or name of the HIP runtime; nothing else is tried |
//! | `TREFOIL_HIPRTC_LIB` | Path or name of hiprtc; nothing else is tried |
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]

mod consts;
mod graphs;
mod load;
mod rtc;
mod runtime;

pub use consts::*;
pub use graphs::{HipGraphFunctions, HipGraphs};
pub use load::{HIP_LIB_VAR, HIPRTC_LIB_VAR, LoadError};
pub use rtc::{Hiprtc, HiprtcFunctions};
pub use runtime::{Hip, HipFunctions};
