//! Parameters and buffers of layers.

use std::fmt;
use std::sync::{Arc, RwLock};

use crate::core::parametrize;
use crate::core::tensor::Tensor;

/// A tensor that a layer owns. Clones refer to the same one, so that optimizers, tied layers and state dictionaries see each other's changes.
#[derive(Clone)]
pub struct Param {
    cell: Arc<RwLock<Tensor>>,
}

impl Param {
    /// A trainable parameter.
    pub fn new(t: Tensor) -> Self {
        Param { cell: Arc::new(RwLock::new(t.with_grad())) }
    }

    /// State without a gradient.
    pub fn buffer(t: Tensor) -> Self {
        Param { cell: Arc::new(RwLock::new(t.detach())) }
    }

    /// The tensor (a leaf of the graph, where trainable). While a wrapper such as
    /// [`SpectralNormalization`](crate::layers::SpectralNormalization) runs this parameter's layer: the tensor that stands for it there.
    pub fn get(&self) -> Tensor {
        if let Some(t) = parametrize::of(&self.cell) {
            return t;
        }
        self.cell.read().unwrap_or_else(|p| p.into_inner()).clone()
    }

    /// Puts another tensor in place; it keeps whether it is trainable. Optimizers that hold the old one will report it.
    pub fn set(&self, t: Tensor) {
        let mut cell = self.cell.write().unwrap_or_else(|p| p.into_inner());
        *cell = if cell.requires_grad() { t.with_grad() } else { t.detach() };
    }

    /// Whether it collects gradients.
    pub fn requires_grad(&self) -> bool {
        self.cell.read().unwrap_or_else(|p| p.into_inner()).requires_grad()
    }

    /// Freezes (`false`) or unfreezes a parameter: frozen it gets no gradient and no update, and stays in the state dictionary. Optimizers
    /// that are built meanwhile leave it out. Integers stay as they are.
    pub fn set_requires_grad(&self, on: bool) {
        let mut cell = self.cell.write().unwrap_or_else(|p| p.into_inner());
        if cell.requires_grad() != on {
            *cell = if on { cell.with_grad() } else { cell.detach() };
        }
    }

    /// Whether another tensor stands for it on this thread, see [`parametrized`].
    pub(crate) fn is_parametrized(&self) -> bool {
        parametrize::of(&self.cell).is_some()
    }

    /// Whether both refer to the same tensor.
    pub fn same(&self, other: &Param) -> bool {
        Arc::ptr_eq(&self.cell, &other.cell)
    }
}

impl fmt::Debug for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.get(), f)
    }
}

/// Runs `f` while each parameter of the list reads as the tensor beside it, on this thread.
pub(crate) fn parametrized<T>(list: Vec<(Param, Tensor)>, f: impl FnOnce() -> T) -> T {
    parametrize::with(list.into_iter().map(|(p, t)| (p.cell, t)).collect(), f)
}
