//! Methods of every layer and network beside its forward: gradients from an output gradient, one batch of training, weights to
//! and from the host, and whether training is possible at all.
//!
//! ```
//! use trefoil::{Registry, Selector};
//! use trefoil_nn::layers::{Dense, Sequential};
//! use trefoil_nn::{InitContext, LayerExt, Model, MseLoss, Tensor};
//!
//! let device = Registry::default().open(&"cpu".parse::<Selector>()?)?;
//! let cx = InitContext::new(&device, 1);
//! let model = Sequential::new().push(Dense::new(&cx, 2, 3)?).push(Dense::new(&cx, 3, 1)?);
//! model.can_train_on(&device).ok()?;
//!
//! let x = Tensor::from_slice(&device, &[1f32, 2.0], &[1, 2])?;
//! let y = Tensor::from_slice(&device, &[0.5f32], &[1, 1])?;
//! let before = model.train_batch(&x, &y, &MseLoss::default())?;
//! model.update_parameters(0.01)?;
//! let after = model.train_batch(&x, &y, &MseLoss::default())?;
//! assert!(after.item::<f32>()? < before.item::<f32>()?);
//!
//! let weights: Vec<f32> = model.download_parameters()?;
//! assert_eq!(weights.len(), model.num_parameters());
//! model.upload_parameters(&weights)?;
//! # Ok::<(), trefoil_nn::NnError>(())
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use trefoil::Element;
use trefoil::ops::elementwise::Binary;

use crate::core::autograd::{backward, enable_grad};
use crate::core::error::{Result, invalid};
use crate::core::host_tensor::HostTensor;
use crate::core::tensor::{Device, Tensor};
use crate::module::{Entry, Layer, LayerExt, Param, Visitor, auxiliary, check_fit, check_names};
use crate::train::losses::Criterion;

/// A forward pass that can be taken back, from [`Model::pass`].
#[derive(Debug)]
pub struct Pass {
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

impl Pass {
    /// What the layer gave.
    pub fn outputs(&self) -> &[Tensor] {
        &self.outputs
    }

    /// Takes the gradients of all outputs back through the layer: returns those of the inputs (`None` for integers and inputs without
    /// influence), and adds those of the parameters to what they have collected. Errors: another number of gradients than outputs, shapes and
    /// dtypes that differ, an output that depends on no parameter and no float input.
    pub fn backpropagate(self, gradients: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        if gradients.len() != self.outputs.len() {
            let expected = format!("{} gradients, one for each output", self.outputs.len());
            return Err(invalid("backpropagate", "gradients", expected, format!("{}", gradients.len())));
        }
        let roots: Vec<_> = self.outputs.iter().zip(gradients).map(|(y, g)| (y, Some(g))).collect();
        backward(&roots, false)?;
        Ok(self.inputs.iter().map(Tensor::grad).collect())
    }
}

/// Something that stands in the way of training.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// Name of the layer in its network; empty for the network itself.
    pub layer: String,
    /// Its type.
    pub kind: String,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer.as_str() {
            "" => write!(f, "{}: {}", self.kind, self.what),
            name => write!(f, "{name} ({}): {}", self.kind, self.what),
        }
    }
}

/// The answer to a question about a layer or network: yes, or why not.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capability {
    /// What stands in the way; empty means yes.
    pub obstacles: Vec<Obstacle>,
}

impl Capability {
    /// Whether nothing stands in the way.
    pub fn is_yes(&self) -> bool {
        self.obstacles.is_empty()
    }

    /// The reasons as an error.
    pub fn ok(&self) -> Result<()> {
        match self.is_yes() {
            true => Ok(()),
            false => Err(invalid("training", "model", "a model that can be trained", self.to_string())),
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_yes() {
            return f.write_str("yes");
        }
        for (i, o) in self.obstacles.iter().enumerate() {
            write!(f, "{}{o}", if i == 0 { "no: " } else { "; " })?;
        }
        Ok(())
    }
}

/// What one layer of a network can do, from [`Model::capabilities`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerCapability {
    /// Name in the network; empty for the network itself.
    pub name: String,
    /// Type.
    pub kind: String,
    /// Trainable scalars of the layer itself, its parts' not included.
    pub parameters: usize,
    /// Whether it can be trained (a layer without parameters: whether gradients pass through it).
    pub training: Capability,
}

/// The layers of a network with their own parameters and obstacles, each before its parts.
fn examine(model: &(impl Layer + ?Sized), device: Option<&Device>) -> Vec<LayerCapability> {
    let list = RefCell::new(vec![]);
    let add = |name: &str, layer_kind: &str, no_gradient: Option<String>| {
        let (name, kind) = (name.to_string(), layer_kind.to_string());
        let obstacle = |what| Obstacle { layer: name.clone(), kind: kind.clone(), what };
        let obstacles = no_gradient.into_iter().map(obstacle).collect();
        list.borrow_mut().push(LayerCapability {
            name,
            kind,
            parameters: 0,
            training: Capability { obstacles },
        });
    };
    add("", model.kind(), model.no_gradient());
    model.visit(&mut Visitor::with_parts(
        &mut |name, e| {
            let (p, trainable) = match e {
                Entry::Param(p) => (p.get(), true),
                Entry::Buffer(p) => (p.get(), false),
                Entry::Counter(_) | Entry::Training(_) => return,
            };
            let mut list = list.borrow_mut();
            let owns = |l: &&mut LayerCapability| {
                l.name.is_empty() || name.strip_prefix(&*l.name).is_some_and(|rest| rest.starts_with('.'))
            };
            let Some(owner) = list.iter_mut().rev().find(owns) else { return };
            let mut refuse = |what: String| {
                let (layer, kind) = (owner.name.clone(), owner.kind.clone());
                owner.training.obstacles.push(Obstacle { layer, kind, what });
            };
            if trainable && !p.dtype().is_float() {
                refuse(format!("parameter `{name}` is {}; only floats have gradients", p.dtype()));
            } else if let Some(d) = device.filter(|d| !d.caps().supports(p.dtype())) {
                let what = if trainable { "parameter" } else { "buffer" };
                refuse(format!("{what} `{name}` is {}, which {} does not have", p.dtype(), d.id()));
            }
            if trainable {
                owner.parameters += p.numel();
            }
        },
        &mut |name, layer| add(name, layer.kind(), layer.no_gradient()),
    ));
    list.into_inner()
}

/// What every layer and network offers beside forward; see the [module's example](self). A network is a layer, so each method serves both.
pub trait Model: Layer {
    /// A forward pass whose gradients can be taken back to the inputs (which are cut from the graph that they come from). Records also inside
    /// of [`no_grad`](crate::autograd::no_grad).
    fn pass(&self, inputs: &[Tensor]) -> Result<Pass> {
        let inputs: Vec<Tensor> = inputs.iter().map(Tensor::with_grad).collect();
        let outputs = enable_grad(|| self.forward_all(&inputs))?;
        Ok(Pass { inputs, outputs })
    }

    /// Loss and parameter gradients of one batch in one pass: clears the gradients, runs forward, loss (with the [auxiliary](crate::auxiliary)
    /// terms) and backward. Returns the loss, on the device. [`update_parameters`](Model::update_parameters) or an [`Optimizer`](crate::Optimizer) makes the step; a
    /// [`Trainer`](crate::Trainer) does everything else that training takes.
    fn train_batch(&self, x: &Tensor, target: &Tensor, loss: &dyn Criterion) -> Result<Tensor> {
        self.zero_grad()?;
        let loss = enable_grad(|| {
            let (out, terms) = auxiliary::collect(|| self.forward(x))?;
            auxiliary::added_to(loss.loss(&out, target)?, &terms)
        })?;
        loss.backward()?;
        Ok(loss.detach())
    }

    /// w -= lr * gradient for each parameter that has one, on the device. Errors: a rate that is not finite.
    fn update_parameters(&self, lr: f64) -> Result<()> {
        if !lr.is_finite() {
            return Err(invalid("update_parameters", "lr", "a finite learning rate", format!("{lr}")));
        }
        for p in self.parameters() {
            let t = p.get();
            let Some(g) = t.grad() else { continue };
            let (w, g) = (t.operand(), g.operand());
            t.device().binary(Binary::Add { alpha: -lr }, w.view()?, g.view()?, w.view_mut()?)?;
            t.storage().touch();
        }
        Ok(())
    }

    /// Gradients of the parameters by name, `None` where nothing was collected. They share memory with the parameters' own.
    fn named_gradients(&self) -> Vec<(String, Option<Tensor>)> {
        self.named_parameters().into_iter().map(|(name, p)| (name, p.get().grad())).collect()
    }

    /// All trainable parameters as one host vector, in the order of the model, shared ones once, converted to `T`. Waits for the device.
    fn download_parameters<T: Element>(&self) -> Result<Vec<T>> {
        flat(self.parameters().iter().map(Param::get))
    }

    /// The parameters' gradients in the order of [`download_parameters`](Model::download_parameters), 0 where nothing was collected.
    fn download_gradients<T: Element>(&self) -> Result<Vec<T>> {
        let gradient = |p: &Param| p.get().grad().map_or_else(|| p.get().detach().zeros_like(), Ok);
        flat(self.parameters().iter().map(gradient).collect::<Result<Vec<_>>>()?.into_iter())
    }

    /// Sets all trainable parameters from one host vector in the order of [`download_parameters`](Model::download_parameters), rounded to their
    /// dtypes. An optimizer with master weights needs [`refresh_masters`](crate::Optimizer::refresh_masters) afterwards. Errors: another
    /// number of values than parameters; nothing is changed then.
    fn upload_parameters<T: Element>(&self, values: &[T]) -> Result<()> {
        let params = self.parameters();
        let want: usize = params.iter().map(|p| p.get().numel()).sum();
        if values.len() != want {
            let expected = format!("{want} values, as many as the model has parameters");
            return Err(invalid("upload_parameters", "values", expected, format!("{}", values.len())));
        }
        let mut rest = values;
        for p in params {
            let t = p.get().detach();
            let (mine, others) = rest.split_at(t.numel());
            rest = others;
            let host = HostTensor::from_slice(mine, t.shape())?.to_dtype(t.dtype())?;
            t.assign(&host.to_device(t.device())?)?;
        }
        Ok(())
    }

    /// Parameters and buffers by name, in host memory. Waits for the device.
    fn download_state(&self) -> Result<BTreeMap<String, HostTensor>> {
        let host = |(name, p): (String, Param)| {
            let t = p.get();
            Ok((name, HostTensor { dtype: t.dtype(), shape: t.shape().to_vec(), bytes: t.to_bytes()? }))
        };
        self.unique_state()?.into_iter().map(host).collect()
    }

    /// Sets parameters and buffers from host memory. Names, shapes and dtypes are checked before the first is written. Errors:
    /// [`NnError::StateNames`](crate::NnError::StateNames),
    /// [`NnError::StateShape`](crate::NnError::StateShape).
    fn upload_state(&self, state: &BTreeMap<String, HostTensor>) -> Result<()> {
        let own = self.unique_state()?;
        check_names(own.iter().map(|(n, _)| n), state.keys())?;
        for (name, p) in &own {
            let h = &state[name];
            check_fit(name, &p.get(), h.dtype, &h.shape)?;
            // The fields are public, so the bytes may be of another length.
            HostTensor::new(h.dtype, &h.shape, h.bytes.clone())?;
        }
        own.iter().try_for_each(|(name, p)| {
            let t = p.get().detach();
            t.assign(&state[name].to_device(t.device())?)
        })
    }

    /// Whether the model has parameters to train and all of it has a backward, or why not. Layers without parameters are no obstacle in a
    /// network. A lazy layer has no parameters before its first forward.
    fn supports_training(&self) -> Capability {
        answer(self, None)
    }

    /// Whether the model could be trained on a device: [`supports_training`](Model::supports_training), and the device has the dtypes of all
    /// parameters and buffers and memory for them and the gradients.
    fn can_train_on(&self, device: &Device) -> Capability {
        answer(self, Some(device))
    }

    /// The same layer by layer, the network itself first and each layer before its parts; without a device, whether they could be trained on
    /// any.
    fn capabilities(&self, device: Option<&Device>) -> Vec<LayerCapability> {
        examine(self, device)
    }
}

impl<L: Layer + ?Sized> Model for L {}

fn answer(model: &(impl Layer + ?Sized), device: Option<&Device>) -> Capability {
    let layers = examine(model, device);
    let mut answer = Capability::default();
    let mut refuse = |what: String| {
        answer.obstacles.push(Obstacle { layer: String::new(), kind: model.kind().into(), what });
    };
    if layers.iter().all(|l| l.parameters == 0) {
        refuse("no trainable parameters (lazy layers have theirs after a first forward)".into());
    }
    if let Some(d) = device {
        let bytes = |p: &Param| p.get().numel() as u64 * p.get().dtype().size() as u64;
        let state: u64 = model.named_state().iter().map(|(_, p)| bytes(p)).sum();
        let need = state + model.parameters().iter().map(bytes).sum::<u64>();
        let has = d.caps().memory_bytes;
        if has > 0 && need > has {
            refuse(format!("parameters and gradients take {need} bytes, {} has {has}", d.id()));
        }
    }
    answer.obstacles.extend(layers.into_iter().flat_map(|l| l.training.obstacles));
    answer
}

/// Tensors one after the other, as a host vector.
fn flat<T: Element>(tensors: impl Iterator<Item = Tensor>) -> Result<Vec<T>> {
    let mut out = vec![];
    for t in tensors {
        let host = HostTensor::new(t.dtype(), t.shape(), t.to_bytes()?)?;
        out.extend(host.to_dtype(T::DTYPE)?.to_vec::<T>()?);
    }
    Ok(out)
}
