//! A layer of the network table, forward and backward.

use std::rc::Rc;

use serde_json::Value;
use trefoil::DType;
use trefoil_bench::{Case, CaseError, random_edges};
use trefoil_nn::{Device, InitContext, Layer, LayerExt, Param, Result, Tensor, network};

use super::timing::Work;
use super::train::{ids, random};
use crate::error::Result as CliResult;

/// The operation of this module.
pub(super) const OPERATION: &str = "layer";

/// A layer that trains, and its inputs.
struct Problem {
    layer: Box<dyn Layer>,
    inputs: Vec<Tensor>,
    /// What collects a gradient: parameters and inputs.
    leaves: Vec<Tensor>,
    /// The gradient of the first output.
    grad: Tensor,
}

impl Problem {
    fn new(c: &Case, d: &Device) -> CliResult<Self> {
        let config = c
            .field("layer")
            .filter(|v| v.is_object())
            .ok_or_else(|| c.unexpected("layer", "a layer of a network"))?;
        let layer = network::layer(&InitContext::new(d, 1).dtype(c.dtype()?), config)?;
        layer.set_training(true);
        let wanted = || c.unexpected("inputs", INPUTS);
        let list = c.field("inputs").and_then(Value::as_array).ok_or_else(wanted)?;
        let inputs = list.iter().map(|i| input(d, c.dtype()?, i, wanted)).collect::<CliResult<Vec<_>>>()?;
        let y = layer.forward_all(&inputs)?.remove(0);
        let grad = random(d, y.dtype(), y.shape())?;
        let leaves = layer.parameters().iter().map(Param::get).chain(inputs.iter().cloned()).collect();
        Ok(Problem { layer, inputs, leaves, grad })
    }

    fn forward(&self) -> Result<Tensor> {
        Ok(self.layer.forward_all(&self.inputs)?.remove(0))
    }

    /// Gradients of all parameters and of the inputs, which replace those of the pass before.
    fn backward(&self) -> Result<()> {
        self.leaves.iter().try_for_each(Tensor::zero_grad)?;
        self.forward()?.backward_with(&self.grad)
    }
}

const INPUTS: &str = "a list of {\"shape\": [..]}, {\"shape\": [..], \"below\": N} for indices, or {\"nodes\": N, \"edges\": E} for the edges of a graph";

/// An input of normal numbers, of indices, or `edge_index [2, E]`.
fn input(d: &Device, dtype: DType, of: &Value, wanted: impl Fn() -> CaseError) -> CliResult<Tensor> {
    let size = |v: &Value| v.as_u64().filter(|&n| n > 0).map(|n| n as usize);
    let field = |key: &str| of.get(key).and_then(size);
    if let (Some(nodes), Some(edges)) = (field("nodes"), field("edges")) {
        let (src, dst) = random_edges(nodes, edges);
        return Ok(Tensor::from_slice(d, &[src, dst].concat(), &[2, edges])?);
    }
    let shape = of.get("shape").and_then(Value::as_array).ok_or_else(&wanted)?;
    let shape = shape.iter().map(size).collect::<Option<Vec<usize>>>().ok_or_else(&wanted)?;
    match field("below") {
        Some(below) => ids(d, &shape, below),
        None => Ok(random(d, dtype, &shape)?.with_grad()),
    }
}

/// The forward pass, and both passes.
pub(super) fn prepare(c: &Case, d: &Device) -> CliResult<[Work; 2]> {
    let problem = Rc::new(Problem::new(c, d)?);
    let both = problem.clone();
    // What a layer must move and compute is not counted.
    let forward = Work::new(0.0, 0.0, move |_| Ok(problem.forward().map(drop)?));
    Ok([forward, Work::new(0.0, 0.0, move |_| Ok(both.backward()?))])
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use trefoil::CpuBackend;

    use super::*;

    fn problem(case: Value) -> CliResult<Problem> {
        let d: Device = Arc::new(CpuBackend::new());
        Problem::new(&Case::new(case).unwrap(), &d)
    }

    #[test]
    fn gradients_do_not_add_up() {
        let layer = json!({"type": "graph_sage", "in_features": 4, "out_features": 3});
        let inputs = json!([{"shape": [6, 4]}, {"nodes": 6, "edges": 9}]);
        let p = problem(json!({"id": "sage", "op": "layer", "layer": layer, "inputs": inputs})).unwrap();
        let gradient = || p.inputs[0].grad().unwrap().to_vec::<f32>().unwrap();
        p.backward().unwrap();
        let first = gradient();
        p.backward().unwrap();
        assert_eq!(gradient(), first);
        assert!(first.iter().any(|&g| g != 0.0));
    }

    #[test]
    fn what_is_missing_is_named() {
        let dense = json!({"type": "dense", "in_features": 4, "out_features": 3});
        for (field, value, named) in [
            ("layer", json!(null), "`layer`"),
            ("inputs", json!([{"shape": [2, 0]}]), "`inputs`"),
            ("inputs", json!([{"shape": [2, 5]}]), "5"),
        ] {
            let mut case =
                json!({"id": "dense", "op": "layer", "layer": dense, "inputs": [{"shape": [2, 4]}]});
            case[field] = value;
            let e = problem(case).err().map(|e| e.to_string());
            assert!(e.as_ref().is_some_and(|e| e.contains(named)), "{e:?}");
        }
    }
}
