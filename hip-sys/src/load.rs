//! Finding the libraries.

use std::ffi::OsString;
use std::fmt;

use libloading::Library;

/// Names the HIP runtime to load.
pub const HIP_LIB_VAR: &str = "TREFOIL_HIP_LIB";
/// Names the hiprtc library to load.
pub const HIPRTC_LIB_VAR: &str = "TREFOIL_HIPRTC_LIB";

/// Why the functions could not be had.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// No candidate could be opened.
    Library {
        /// Names and paths in the order they were tried, the last with the loader's own words.
        tried: Vec<String>,
        /// The environment variable that overrides the search.
        var: &'static str,
    },
    /// A library was opened, but lacks a function.
    Symbol {
        /// The library.
        library: String,
        /// The first function that is missing.
        symbol: &'static str,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoadError::Library { tried, var } => {
                write!(f, "no library found (tried {}); {var} names one", tried.join(", "))
            }
            LoadError::Symbol { library, symbol } => write!(f, "{library} has no function {symbol}"),
        }
    }
}

impl std::error::Error for LoadError {}

/// An open library. It is never closed: drivers start threads and exit handlers, which do not survive that.
#[derive(Debug, Clone)]
pub(crate) struct Opened {
    library: &'static Library,
    pub(crate) name: String,
}

impl Opened {
    /// The address of a function as pointer type `F`.
    ///
    /// # Safety
    /// `F` is a function pointer type with the signature that the library gives to `symbol`.
    pub(crate) unsafe fn get<F: Copy>(&self, symbol: &'static str) -> Result<F, LoadError> {
        // SAFETY: the caller vouches for the signature; the library stays open.
        match unsafe { self.library.get::<F>(symbol) } {
            Ok(f) => Ok(*f),
            Err(_) => Err(LoadError::Symbol { library: self.name.clone(), symbol }),
        }
    }
}

/// The value of an override, if it is set and not empty.
pub(crate) fn override_of(var: &str) -> Option<OsString> {
    std::env::var_os(var).filter(|v| !v.is_empty())
}

/// Opens the first of `candidates` that the system's loader accepts.
pub(crate) fn open_first<S: Into<OsString>>(
    candidates: impl IntoIterator<Item = S>,
    var: &'static str,
) -> Result<Opened, LoadError> {
    let mut tried: Vec<String> = Vec::new();
    let mut reason = String::new();
    for candidate in candidates {
        let candidate: OsString = candidate.into();
        let name = candidate.to_string_lossy().into_owned();
        // SAFETY: opening runs the library's initialisers. The candidates are vendor libraries by their fixed names, or what the
        // user named.
        match unsafe { Library::new(&candidate) } {
            Ok(library) => return Ok(Opened { library: Box::leak(Box::new(library)), name }),
            Err(e) => {
                tried.push(name);
                // The loader's own words are the source; the error itself only names the call.
                reason = std::error::Error::source(&e).map_or(e.to_string(), ToString::to_string);
            }
        }
    }
    if let Some(last) = tried.last_mut() {
        *last = format!("{last}: {reason}");
    }
    Err(LoadError::Library { tried, var })
}

/// Names of the HIP runtime, newest first.
pub(crate) fn runtime_names() -> Vec<String> {
    if cfg!(windows) {
        ["amdhip64_7.dll", "amdhip64_6.dll", "amdhip64.dll"].map(String::from).to_vec()
    } else {
        with_rocm_path("libamdhip64.so", &["7", "6", "5"])
    }
}

/// Names of hiprtc, newest first, those of the runtime's own generation before all others.
pub(crate) fn rtc_names(runtime: &str) -> Vec<String> {
    let mut names = if cfg!(windows) {
        let minor =
            |major: u32, last: u32| (0..=last).rev().map(move |m| format!("hiprtc{major:02}{m:02}.dll"));
        minor(7, 3).chain(minor(6, 4)).chain(minor(5, 7)).chain(["hiprtc.dll".into()]).collect()
    } else {
        with_rocm_path("libhiprtc.so", &["7", "6", "5"])
    };
    let generation = |name: &str| {
        ["7", "6", "5"].into_iter().find(|g| {
            name.contains(&format!(".so.{g}"))
                || name.contains(&format!("_{g}.dll"))
                || name.contains(&format!("hiprtc0{g}"))
        })
    };
    if let Some(own) = generation(runtime) {
        names.sort_by_key(|n| generation(n) != Some(own));
    }
    names
}

/// `stem.N` for each version by bare name, then the same below ROCm's usual folders, then the bare stem.
fn with_rocm_path(stem: &str, versions: &[&str]) -> Vec<String> {
    let rocm =
        std::env::var("ROCM_PATH").ok().filter(|p| !p.is_empty()).unwrap_or_else(|| "/opt/rocm".into());
    let versioned = |prefix: String| versions.iter().map(move |v| format!("{prefix}{stem}.{v}"));
    versioned(String::new()).chain(versioned(format!("{rocm}/lib/"))).chain([stem.to_string()]).collect()
}

/// Declares a table of functions: a struct of public function pointers, how it is read from a library, and one method per function on the
/// struct that owns library and table.
macro_rules! function_table {
    (
        $(#[$table_doc:meta])* table $table:ident;
        owner $owner:ident;
        $( $(#[$doc:meta])* fn $name:ident ( $( $arg:ident : $ty:ty ),* $(,)? ) -> $ret:ty $(as $symbol:literal)?; )*
    ) => {
        $(#[$table_doc])*
        #[derive(Debug, Clone, Copy)]
        pub struct $table {
            $( $(#[$doc])* pub $name: unsafe extern "C" fn($($ty),*) -> $ret, )*
        }

        impl $table {
            /// Reads every function; the first that is missing is the error.
            ///
            /// # Safety
            /// The library gives these functions the signatures of AMD's headers.
            unsafe fn read(from: &$crate::load::Opened) -> Result<Self, $crate::load::LoadError> {
                Ok($table {
                    $( $name: {
                        // SAFETY: the field's type is the signature in AMD's headers.
                        let found = unsafe { from.get(stringify!($name)) };
                        $(
                            // SAFETY: both names have this signature.
                            let found = unsafe { from.get($symbol) }.or(found);
                        )?
                        found?
                    }, )*
                })
            }
        }

        impl $owner {
            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// The arguments meet the documentation of the function of this name: pointers are valid for what is read or written
                /// through them, handles are live and of this library.
                #[inline]
                #[allow(clippy::too_many_arguments)]
                pub unsafe fn $name(&self, $($arg: $ty),*) -> $ret {
                    // SAFETY: the table was read from a library that stays open; the caller vouches for the arguments.
                    unsafe { (self.functions.$name)($($arg),*) }
                }
            )*
        }
    };
}
pub(crate) use function_table;
