//! Single layers: dense, convolution, attention, SwiGLU.

use trefoil::ops::activation::Activation;

use super::{Act, Heads, Op, Place, Planner, Window, fail, first, need};
use crate::core::error::Result;
use crate::interop::loom::definition::{LayerDefinition, Origin};
use crate::interop::loom::flags::Flag;

impl Planner<'_> {
    pub(super) fn activation(&mut self, path: &str, d: &LayerDefinition) -> Result<Act> {
        let key = format!("{path}.activation");
        let relu = Act { act: Activation::Relu, scale: self.flags.relu_scale };
        let act = match d.activation.as_deref().unwrap_or("") {
            "relu" => relu,
            "sigmoid" => Act::plain(Activation::Sigmoid),
            "tanh" => Act::plain(Activation::Tanh),
            "softplus" => Act::plain(Activation::Softplus { beta: 1.0, threshold: 20.0 }),
            "leaky_relu" => {
                self.mattered(Flag::LeakySlope, &key);
                Act::plain(Activation::LeakyRelu { slope: self.flags.leaky_slope })
            }
            "identity" => Act::plain(Activation::Identity),
            "" | "linear" => match self.ask(Flag::LinearIsRelu, &key, self.flags.linear_is_relu) {
                true => relu,
                false => Act::plain(Activation::Identity),
            },
            other => match self.ask(Flag::UnknownActivation, &key, self.flags.unknown_activation) {
                true => relu,
                false => {
                    let names = "relu, sigmoid, tanh, softplus, leaky_relu, linear";
                    return fail(key, format!("unknown activation `{other}`, expected one of {names}"));
                }
            },
        };
        if act.act == Activation::Relu {
            self.mattered(Flag::ReluScale, &key);
        }
        Ok(act)
    }

    pub(super) fn dense(&mut self, path: &str, d: &LayerDefinition, at: Place) -> Result<Op> {
        let real = first([d.input_height]).is_some() && first([d.output_height]).is_some();
        let trap = d.width == Some(1) && d.height == Some(1) && real;
        let skip = match (trap, at.origin) {
            (false, _) => false,
            (true, Origin::Json) => !self.ask(Flag::WidthHeightOne, path, self.flags.width_height_one),
            (true, _) => true,
        };
        let [w, h] = if skip { [None, None] } else { [d.width, d.height] };
        let Some(inputs) = first([w, d.input_size, d.input_height]) else {
            return fail(path, "needs one of width, input_size, input_height");
        };
        let Some(outputs) = first([h, d.output_size, d.output_height]) else {
            return fail(path, "needs one of height, output_size, output_height");
        };
        Ok(Op::Dense { inputs, outputs, act: self.activation(path, d)? })
    }

    pub(super) fn conv1d(&mut self, path: &str, d: &LayerDefinition, size: Option<usize>) -> Result<Op> {
        let guide =
            [d.conv1d_in_channels, d.conv1d_filters, d.conv1d_kernel_size, d.conv1d_stride, d.conv1d_padding];
        let mut keys = [d.input_channels, d.filters, d.kernel_size, d.stride, d.padding];
        if guide.iter().any(Option::is_some)
            && !self.ask(Flag::Conv1dGuideKeys, path, self.flags.conv1d_guide_keys)
        {
            for (i, (own, other)) in keys.iter_mut().zip(guide).enumerate() {
                if let (Some(a), Some(b)) = (*own, other)
                    && a != b
                {
                    let name = ["in_channels", "filters", "kernel_size", "stride", "padding"][i];
                    return fail(
                        format!("{path}.conv1d_{name}"),
                        format!("is {b}, the key without conv1d_ is {a}"),
                    );
                }
                *own = own.or(other);
            }
        }
        let act = self.activation(path, d)?;
        let [channels, filters, kernel, stride, padding] = keys;
        if self.flags.conv1d_guide_keys && (first([filters]).is_none() || first([kernel]).is_none()) {
            return Ok(Op::Vanish);
        }
        let channels = first([channels]).unwrap_or(1);
        let lengths = match (first([d.input_length, d.input_height]), size) {
            (Some(n), _) => vec![n],
            (None, Some(n)) if n.is_multiple_of(channels) => vec![n / channels],
            (None, Some(n)) => {
                return fail(
                    path,
                    format!("{n} elements of a sample do not divide into {channels} channels"),
                );
            }
            // The first layer of a file may leave the length to the input.
            (None, None) => vec![],
        };
        let stride = first([stride]).unwrap_or(1);
        let window = window(path, channels, [filters, kernel], stride, padding, lengths)?;
        if let Some(&n) = window.out.first() {
            agrees(path, "output_height", d.output_height, n)?;
        }
        Ok(Op::Conv1d { window, act })
    }

    pub(super) fn conv2d(&mut self, path: &str, d: &LayerDefinition) -> Result<Op> {
        let size =
            vec![need(path, "input_height", d.input_height)?, need(path, "input_width", d.input_width)?];
        let channels = need(path, "input_channels", d.input_channels)?;
        let fixed = first([d.stride]).is_none()
            && self.ask(Flag::Conv2dStrideZero, path, self.flags.conv2d_stride_zero);
        let stride = first([d.stride]).unwrap_or(1);
        let mut window = window(path, channels, [d.filters, d.kernel_size], stride, d.padding, size)?;
        window.fixed = fixed;
        agrees(path, "output_height", d.output_height, window.out[0])?;
        agrees(path, "output_width", d.output_width, window.out[1])?;
        Ok(Op::Conv2d { window, act: self.activation(path, d)? })
    }

    pub(super) fn mha(&mut self, path: &str, d: &LayerDefinition, at: Place) -> Result<Op> {
        let dim = need(path, "d_model", d.d_model)?;
        let heads = first([d.num_heads]).unwrap_or(8);
        let kv_heads = first([d.num_kv_heads]).unwrap_or(heads);
        if !dim.is_multiple_of(heads) || !heads.is_multiple_of(kv_heads) {
            let what = format!(
                "d_model {dim}, num_heads {heads}, num_kv_heads {kv_heads}: each must divide the one before"
            );
            return fail(format!("{path}.num_heads"), what);
        }
        let head_dim = dim / heads;
        if head_dim > 1 && !head_dim.is_multiple_of(2) {
            return fail(
                format!("{path}.num_heads"),
                format!("heads of odd size {head_dim} cannot be rotated"),
            );
        }
        let base = f64::from(d.rope_freq_base.filter(|b| *b != 0.0).unwrap_or(10_000.0));
        if !(base > 0.0 && base.is_finite()) {
            return fail(format!("{path}.rope_freq_base"), "must be above 0");
        }
        let sized = match at.origin {
            Origin::Json => false,
            Origin::Bundle => !at.branch,
            Origin::Code => true,
        };
        let empty = !sized && self.ask(Flag::MhaZeroHeadDim, path, self.flags.mha_zero_head_dim);
        let projected = !self.ask(Flag::MhaUnprojected, path, self.flags.mha_unprojected);
        let one_sequence = self.ask(Flag::MhaOneSequence, path, self.flags.mha_one_sequence);
        self.mattered(Flag::ImplicitResidual, path);
        Ok(Op::Mha(Heads { d: dim, heads, kv_heads, head_dim, base, empty, projected, one_sequence }))
    }

    pub(super) fn swiglu(&mut self, path: &str, d: &LayerDefinition, at: Place) -> Result<Op> {
        let Some(inputs) = first([d.input_size, d.input_height]) else {
            return fail(path, "needs input_size or input_height");
        };
        let Some(inner) = first([d.output_size, d.output_height]) else {
            return fail(path, "needs output_size or output_height");
        };
        if at.origin == Origin::Json
            && self.ask(Flag::SwigluJsonIsDense, path, self.flags.swiglu_json_is_dense)
        {
            self.mattered(Flag::LeakySlope, path);
            let act = Act::plain(Activation::LeakyRelu { slope: self.flags.leaky_slope });
            return Ok(Op::Dense { inputs, outputs: inner, act });
        }
        self.mattered(Flag::ImplicitResidual, path);
        Ok(Op::SwiGlu { inputs, inner })
    }
}

fn agrees(path: &str, key: &str, given: Option<usize>, derived: usize) -> Result<()> {
    match first([given]) {
        Some(n) if n != derived => {
            fail(format!("{path}.{key}"), format!("is {n}, the other sizes give {derived}"))
        }
        _ => Ok(()),
    }
}

fn window(
    path: &str,
    channels: usize,
    [filters, kernel]: [Option<usize>; 2],
    stride: usize,
    padding: Option<usize>,
    size: Vec<usize>,
) -> Result<Window> {
    let (filters, kernel) = (need(path, "filters", filters)?, need(path, "kernel_size", kernel)?);
    let padding = padding.unwrap_or(0);
    let mut out = vec![];
    for &n in &size {
        let wide = padding.checked_mul(2).and_then(|p| p.checked_add(n));
        match wide.and_then(|w| w.checked_sub(kernel)) {
            Some(room) => out.push(room / stride + 1),
            None => {
                let what = format!("windows of {kernel} do not fit {n} elements padded by {padding}");
                return fail(format!("{path}.kernel_size"), what);
            }
        }
    }
    Ok(Window { channels, filters, kernel, stride, padding, size, out, fixed: false })
}
