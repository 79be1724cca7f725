//! What is meant by a layer type that is not known.

use super::{LAYERS, LayerInfo};
use crate::core::options::nearest;
use crate::layers::ActivationKind;

/// What is wrong with the name of a layer type: the type that is meant, and where all of them stand.
pub(super) fn unknown_type(name: &str) -> String {
    let is_kind = |n: &&str| *n == "prelu" || ActivationKind::from_name(n).is_some();
    let plain_name = plain(name);
    let near = match (of_pytorch(name), [name, &plain_name].into_iter().find(is_kind)) {
        (None | Some("activation"), Some(kind)) => Some(format!("`activation` with `kind` `{kind}`")),
        (of_pytorch, _) => of_pytorch
            .or_else(|| nearest(name, LAYERS.iter().map(|l| l.name)))
            .map(|near| format!("`{near}`")),
    };
    let near = near.map_or(String::new(), |near| format!("did you mean {near}? "));
    format!("unknown layer type `{name}`; {near}docs/NETWORKS.md lists the types and their options")
}

/// The type that PyTorch (or another library) has under this name: `conv2d`, `Conv2d` and `nn.Conv2d` are `convolutional`. Of several types,
/// that with the fewest words about its counterpart, then that of the fewest axes.
fn of_pytorch(name: &str) -> Option<&'static str> {
    let name = plain(name);
    let named = |l: &&LayerInfo| plain(l.name) == name || counterparts(l.torch).any(|c| c == name);
    LAYERS.iter().filter(named).min_by_key(|l| (l.torch.len(), l.spatial)).map(|l| l.name)
}

/// A name without its module, capitals and underscores.
fn plain(name: &str) -> String {
    let own = name.rsplit('.').next().unwrap_or_default();
    own.chars().filter(|&c| c != '_').flat_map(char::to_lowercase).collect()
}

/// The names in [`LayerInfo::torch`], as [`plain`] has them. `nn.BatchNorm1d/2d/3d` is three, and the name before the axes.
fn counterparts(torch: &str) -> impl Iterator<Item = String> {
    let words = torch.split(|c: char| !(c.is_alphanumeric() || "_./".contains(c)));
    let names =
        words.map(|w| w.trim_matches('.')).filter(|w| w.contains('.') || w.contains(char::is_uppercase));
    names.flat_map(|w| match w.strip_suffix("1d/2d/3d") {
        Some(stem) => ["", "1d", "2d", "3d"].iter().map(|axes| plain(stem) + axes).collect(),
        None => vec![plain(w)],
    })
}
