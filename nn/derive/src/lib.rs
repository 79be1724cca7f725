//! `#[derive(Layer)]` of trefoil-nn, which re-exports and documents it.
#![forbid(unsafe_code)]

mod attributes;
mod expand;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Implements `trefoil_nn::Layer` for a struct: its own method `forward` computes, and its fields show parameters, buffers, generator positions
/// and parts under their names, as the attributes of a PyTorch module do.
///
/// | field | what it is |
/// |---|---|
/// | `Param` | a trainable parameter, with `#[layer(buffer)]` a buffer |
/// | a layer, also boxed or shared | a part, whose state stands under `field.` |
/// | `Option`, `Vec`, arrays of these | what is there; elements have the names `field.0`, `field.1`, ... |
/// | `AtomicU64` | the position of a random number generator |
/// | `AtomicBool` | whether the layer trains |
/// | numbers, texts, `DType`, `Activation` | a setting, without state |
///
/// `#[layer(skip)]` leaves a field out (constants such as masks; types that are none of these need it), `#[layer(rename = "name")]` gives it
/// another name in state dictionaries, `#[layer(flatten)]` shows what a part shows without a name in front.
///
/// On the struct, `#[layer(kind = "Name")]` sets the name of the layer's type, and `#[layer(own(forward_all, set_training, reset_state,
/// no_gradient, local_learning))]` says which methods of the trait the struct has itself, as inherent methods of the same signature.
///
/// A struct without a method `forward` of its own is refused, since the derived one would call itself. `LayerField` has an example.
#[proc_macro_derive(Layer, attributes(layer))]
pub fn derive_layer(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand::layer(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}
