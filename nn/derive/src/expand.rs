//! The implementation that the derive macro writes.

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Fields, Ident, Member, Result};

use crate::attributes::{OfField, OfStruct, Role};

pub(crate) fn layer(input: &DeriveInput) -> Result<TokenStream> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new_spanned(
            &input.ident,
            "`#[derive(Layer)]` is for structs; implement `Layer` by hand here",
        ));
    };
    let of = OfStruct::read(&input.attrs)?;
    let visits = visits(&data.fields)?;
    let name = &input.ident;
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    let kind = of.kind.map(|kind| quote! { fn kind(&self) -> &'static str { #kind } });
    let own = of.own.iter().map(delegate);
    let traps = of.own.iter().map(
        |method| quote! { fn #method(&self) -> TheStructNeedsItsOwnMethod { TheStructNeedsItsOwnMethod } },
    );
    Ok(quote! {
        #[allow(clippy::all)]
        const _: () = {
            // Beside the trait's methods, others of every type: a struct without its own is ambiguous here instead of calling itself.
            #[allow(dead_code)]
            struct TheStructNeedsItsOwnMethod;
            #[allow(dead_code)]
            trait MethodsOfTheStruct {
                fn forward(&self) -> TheStructNeedsItsOwnMethod {
                    TheStructNeedsItsOwnMethod
                }
                #(#traps)*
            }
            impl<T: ?::core::marker::Sized> MethodsOfTheStruct for T {}

            impl #generics ::trefoil_nn::Layer for #name #arguments #bounds {
                fn forward(&self, x: &::trefoil_nn::Tensor) -> ::trefoil_nn::Result<::trefoil_nn::Tensor> {
                    Self::forward(self, x)
                }
                #kind
                fn visit(&self, v: &mut ::trefoil_nn::Visitor<'_>) {
                    let _ = &v;
                    #(#visits)*
                }
                #(#own)*
            }
        };
    })
}

/// How the fields are shown, in their order.
fn visits(fields: &Fields) -> Result<Vec<TokenStream>> {
    let mut out = vec![];
    for (i, field) in fields.iter().enumerate() {
        let of = OfField::read(&field.attrs)?;
        let member = field.ident.clone().map_or_else(|| Member::from(i), Member::from);
        let plain = field.ident.as_ref().map_or_else(|| i.to_string(), plain_name);
        let name = of.rename.map_or(plain, |n| n.value());
        if name.is_empty() || name.split('.').any(str::is_empty) {
            return Err(Error::new(
                field.span(),
                "expected a name of parts between dots, none of them empty",
            ));
        }
        let span = field.ty.span();
        out.push(match of.role {
            Role::Skip => continue,
            Role::ByType => {
                quote_spanned! { span => ::trefoil_nn::LayerField::visit_field(&self.#member, #name, v); }
            }
            Role::Buffer => {
                quote_spanned! { span => ::trefoil_nn::BufferField::visit_buffer(&self.#member, #name, v); }
            }
            Role::Flatten => quote_spanned! { span => v.flattened(&self.#member); },
        });
    }
    Ok(out)
}

/// A name without the `r#` of reserved words.
fn plain_name(name: &Ident) -> String {
    let text = name.to_string();
    text.strip_prefix("r#").unwrap_or(&text).to_string()
}

/// A method of the trait that calls the struct's own.
fn delegate(own: &Ident) -> TokenStream {
    match own.to_string().as_str() {
        "forward_all" => quote! {
            fn forward_all(&self, inputs: &[::trefoil_nn::Tensor]) -> ::trefoil_nn::Result<::std::vec::Vec<::trefoil_nn::Tensor>> {
                Self::#own(self, inputs)
            }
        },
        "set_training" => quote! { fn set_training(&self, on: bool) { Self::#own(self, on) } },
        "reset_state" => quote! { fn reset_state(&self) { Self::#own(self) } },
        "no_gradient" => quote! {
            fn no_gradient(&self) -> ::core::option::Option<::std::string::String> { Self::#own(self) }
        },
        _ => quote! {
            fn local_learning(&self) -> ::core::option::Option<&dyn ::trefoil_nn::LocalLearning> { Self::#own(self) }
        },
    }
}
