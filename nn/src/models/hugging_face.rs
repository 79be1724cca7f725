//! Names and layouts of weights in files of Hugging Face's transformers.

use crate::core::error::Result;
use crate::io::state_map::StateMap;
use crate::module::{Layer, LayerExt, StateDict};

/// How a model of transformers names what a model here consists of. Names are patterns, see [`StateMap`].
pub(crate) struct Names {
    /// Before all names but those of heads; absent in files of models without a head.
    pub(crate) prefix: &'static str,
    pub(crate) heads: &'static [&'static str],
    /// There and here.
    pub(crate) renamed: &'static [(&'static str, &'static str)],
    /// Projections of query, key and value there and the one here, whose weights and biases end in `.weight` and `_weight`.
    pub(crate) packed: Option<([&'static str; 3], &'static str)>,
    /// Matrices that are kept as [in, out] there, by their names there.
    pub(crate) transposed: &'static [&'static str],
    /// Names in files of the first versions, and what they are called since, both there.
    pub(crate) older: &'static [(&'static str, &'static str)],
    /// What files hold beside the parameters.
    pub(crate) dropped: &'static [&'static str],
}

const KINDS: [&str; 2] = ["weight", "bias"];

impl Names {
    fn import(&self) -> StateMap {
        let mut map = StateMap::new().strip_prefix(self.prefix);
        map = self.dropped.iter().fold(map, |m, &name| m.exclude(name));
        map = self.older.iter().fold(map, |m, &(older, name)| m.rename_matching(older, name));
        map = self.transposed.iter().fold(map, |m, &name| m.transpose_matching(name));
        if let Some((there, here)) = self.packed {
            map = KINDS.iter().fold(map, |m, kind| {
                m.join(there.map(|name| format!("{name}.{kind}")), format!("{here}_{kind}"))
            });
        }
        self.renamed.iter().fold(map, |m, &(there, here)| m.rename_matching(there, here))
    }

    fn export(&self, heads: [usize; 3]) -> StateMap {
        let mut map =
            self.renamed.iter().fold(StateMap::new(), |m, &(there, here)| m.rename_matching(here, there));
        if let Some((there, here)) = self.packed {
            map = KINDS.iter().fold(map, |m, kind| {
                let parts = there.iter().zip(heads).map(|(name, share)| (format!("{name}.{kind}"), share));
                m.split(format!("{here}_{kind}"), parts)
            });
        }
        map = self.transposed.iter().fold(map, |m, &name| m.transpose_matching(name));
        map = map.add_prefix(self.prefix);
        self.heads.iter().fold(map, |m, &head| m.rename_prefix(format!("{}{head}", self.prefix), head))
    }

    /// Puts a state dictionary of transformers into a model, converted to its dtypes. Errors: names and shapes that do not fit.
    pub(crate) fn load(&self, model: &dyn Layer, state: &StateDict) -> Result<()> {
        let mut state = self.import().apply(state)?;
        for (name, own) in model.unique_state()? {
            if let Some(t) = state.get_mut(&name) {
                *t = t.detach().to_dtype(own.get().dtype())?;
            }
        }
        model.load_state_dict(&state)
    }

    /// A model's state dictionary as transformers names it. `heads`: of queries, keys and values.
    pub(crate) fn state_of(&self, model: &dyn Layer, heads: [usize; 3]) -> Result<StateDict> {
        self.export(heads).apply(&model.state_dict()?)
    }
}
