//! State dictionaries in safetensors files, as PyTorch and Hugging Face write and read them: whole or sharded, all of a model or a part.
//!
//! Files are read by position in pieces of a few MiB, so that host memory stays bounded however large a tensor is. (A memory map would
//! need `unsafe`: another process can change the file under it.)
//!
//! ```no_run
//! use trefoil_nn::state_file::{self, LoadOptions, NameMap, SaveOptions};
//! use trefoil_nn::{Layer, LayerExt, StateFile};
//!
//! # fn f(model: &dyn Layer) -> trefoil_nn::Result<()> {
//! let file = StateFile::open("model.safetensors.index.json")?;
//! let names = NameMap::new().prefix("model.", "").drop("lm_head.");
//! let report = file.load(model, &LoadOptions::new().partial().convert().names(names))?;
//! println!("{} loaded, missing: {:?}", report.loaded.len(), report.missing);
//! state_file::save(&model.state_dict()?, "out/model.safetensors", &SaveOptions::new().shard_bytes(5 << 30))?;
//! # Ok(()) }
//! ```

pub use crate::io::load::{LoadOptions, StateFile};
pub use crate::io::names::NameMap;
pub use crate::io::save::{SaveOptions, save};
pub use crate::module::state::{LoadReport, Mismatch};
