//! `#[layer(..)]` on structs and fields.

use syn::meta::ParseNestedMeta;
use syn::{Attribute, Ident, LitStr, Result};

/// Methods of the trait that a struct may have itself.
pub(crate) const OWN: &[&str] =
    &["forward_all", "set_training", "reset_state", "no_gradient", "local_learning"];

/// What stands on the struct.
#[derive(Default)]
pub(crate) struct OfStruct {
    pub(crate) kind: Option<LitStr>,
    pub(crate) own: Vec<Ident>,
}

/// What a field is, where its type does not say it.
#[derive(Default, Clone, Copy, PartialEq)]
pub(crate) enum Role {
    #[default]
    ByType,
    Buffer,
    Flatten,
    Skip,
}

/// What stands on a field.
#[derive(Default)]
pub(crate) struct OfField {
    pub(crate) role: Role,
    pub(crate) rename: Option<LitStr>,
}

fn each(attributes: &[Attribute], mut f: impl FnMut(ParseNestedMeta<'_>) -> Result<()>) -> Result<()> {
    attributes.iter().filter(|a| a.path().is_ident("layer")).try_for_each(|a| a.parse_nested_meta(&mut f))
}

impl OfStruct {
    pub(crate) fn read(attributes: &[Attribute]) -> Result<Self> {
        let mut all = OfStruct::default();
        each(attributes, |meta| {
            if meta.path.is_ident("kind") {
                all.kind = Some(meta.value()?.parse()?);
                return Ok(());
            }
            if !meta.path.is_ident("own") {
                return Err(meta.error("expected `kind = \"Name\"` or `own(method, ..)`"));
            }
            meta.parse_nested_meta(|method| {
                let known = OWN.iter().any(|name| method.path.is_ident(name));
                let name = method.path.get_ident().filter(|_| known).cloned();
                all.own
                    .push(name.ok_or_else(|| method.error(format!("expected one of {}", OWN.join(", "))))?);
                Ok(())
            })
        })?;
        Ok(all)
    }
}

impl OfField {
    pub(crate) fn read(attributes: &[Attribute]) -> Result<Self> {
        let mut all = OfField::default();
        each(attributes, |meta| {
            if meta.path.is_ident("rename") {
                all.rename = Some(meta.value()?.parse()?);
                return Ok(());
            }
            let roles = [("buffer", Role::Buffer), ("flatten", Role::Flatten), ("skip", Role::Skip)];
            let Some((_, role)) = roles.into_iter().find(|(name, _)| meta.path.is_ident(name)) else {
                return Err(meta.error("expected `buffer`, `flatten`, `skip` or `rename = \"name\"`"));
            };
            if all.role != Role::ByType {
                return Err(meta.error("expected one of `buffer`, `flatten`, `skip`, got two"));
            }
            all.role = role;
            Ok(())
        })?;
        Ok(all)
    }
}
