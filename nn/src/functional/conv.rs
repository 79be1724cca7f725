//! Convolution, its transpose, its deformable form and its windows as columns.

use trefoil::ops::activation::Activation;
use trefoil::ops::conv::{CausalConvBwd, CausalConvIo, Conv, ConvBwd, ConvIo, DeformConvBwd, DeformConvIo};

use crate::core::autograd::{BackwardCtx, Saved, compose, grad_enabled, out};
use crate::core::error::{Result, invalid};
use crate::core::tensor::{MemoryFormat, Tensor, same_device, same_dtype};
use crate::functional::derivatives::conv::Bilinear;
use crate::functional::gemm::fuses;
use crate::functional::operand::{Inputs, Placed, operand, save, saved, view, view_mut, whole};

/// Whether an operation is the transposed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Forward,
    Transposed,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Forward => "conv",
            Way::Transposed => "conv_transpose",
        }
    }
}

/// Batch, channels and spatial sizes of an input with 1 to 3 spatial axes.
fn planes<'a>(op: &'static str, x: &'a Tensor) -> Result<(usize, usize, &'a [usize])> {
    match x.shape() {
        [n, c, spatial @ ..] if (1..=3).contains(&spatial.len()) => Ok((*n, *c, spatial)),
        other => {
            let expected = "shape [N, C, spatial..] with one to three spatial axes";
            Err(invalid(op, "x", expected, format!("{other:?}")))
        }
    }
}

/// The first two sizes of a weight and its kernel, of as many axes as the input has.
fn kernel<'a>(op: &'static str, w: &'a Tensor, axes: usize) -> Result<([usize; 2], &'a [usize])> {
    match w.shape() {
        [a, b, k @ ..] if k.len() == axes => Ok(([*a, *b], k)),
        other => Err(invalid(op, "weight", format!("rank {}", axes + 2), format!("shape {other:?}"))),
    }
}

/// Elements of a window; more than fit are as many as no tensor has.
fn taps(kernel: &[usize]) -> usize {
    kernel.iter().fold(1, |n, &k| n.saturating_mul(k))
}

impl Tensor {
    /// Convolution over one to three spatial axes (kernels are not flipped): x [N, Ci, S], weight [Co, Ci/groups, K], bias `[Co]`, then
    /// `p.act`, in one kernel where the convolution can apply it. Channels last where x or the weight is. Oracle `F.conv1d`, `F.conv2d`,
    /// `F.conv3d`.
    ///
    /// Errors: `Invalid` for ranks, dtypes, groups that do not divide the channels, windows larger than the padded input.
    pub fn conv(&self, weight: &Tensor, bias: Option<&Tensor>, p: &Conv) -> Result<Tensor> {
        self.convolve(Way::Forward, weight, bias, p)
    }

    /// [`conv`](Tensor::conv) of one spatial axis, x [N, C, L].
    pub fn conv1d(&self, weight: &Tensor, bias: Option<&Tensor>, p: &Conv) -> Result<Tensor> {
        self.of_axes("conv1d", 1)?.conv(weight, bias, p)
    }

    /// [`conv`](Tensor::conv) of images, x [N, C, H, W].
    pub fn conv2d(&self, weight: &Tensor, bias: Option<&Tensor>, p: &Conv) -> Result<Tensor> {
        self.of_axes("conv2d", 2)?.conv(weight, bias, p)
    }

    /// [`conv`](Tensor::conv) of volumes, x [N, C, D, H, W].
    pub fn conv3d(&self, weight: &Tensor, bias: Option<&Tensor>, p: &Conv) -> Result<Tensor> {
        self.of_axes("conv3d", 3)?.conv(weight, bias, p)
    }

    /// The adjoint of a convolution as a forward operation: x [N, Ci, S], weight [Ci, Co/groups, K], bias `[Co]`, then `p.act`. Output axes
    /// have (i-1)*stride - pads + dilation*(k-1) + out_pad + 1 elements. Oracle `F.conv_transpose1d`, `2d`, `3d`. Errors as for
    /// [`conv`](Tensor::conv), and an output padding not below the larger of stride and dilation.
    pub fn conv_transpose(&self, weight: &Tensor, bias: Option<&Tensor>, p: &Conv) -> Result<Tensor> {
        self.convolve(Way::Transposed, weight, bias, p)
    }

    fn of_axes(&self, op: &'static str, axes: usize) -> Result<&Tensor> {
        if self.rank() == axes + 2 {
            return Ok(self);
        }
        Err(invalid(op, "x", format!("rank {}", axes + 2), format!("shape {:?}", self.shape())))
    }

    fn convolve(&self, way: Way, weight: &Tensor, bias: Option<&Tensor>, p: &Conv) -> Result<Tensor> {
        let op = way.name();
        same_device(op, self, weight)?;
        bias.map_or(Ok(()), |b| same_device(op, self, b))?;
        same_dtype(op, self, weight)?;
        if !fuses(p.act) {
            return self.convolve(way, weight, bias, &p.act(Activation::Identity))?.activation(p.act);
        }
        let (n, _, spatial) = planes(op, self)?;
        let ([first, second], k) = kernel(op, weight, spatial.len())?;
        let (co, size) = match way {
            Way::Forward => (first, p.output_size(spatial, k)?),
            Way::Transposed => (second.saturating_mul(p.groups), p.transpose_output_size(spatial, k)?),
        };
        // As in PyTorch, either of the two decides.
        let format = match self.memory_format() {
            MemoryFormat::Contiguous => weight.memory_format(),
            last => last,
        };
        let (x, w, bias) = (self.in_format(format)?, weight.in_format(format)?, whole(bias)?);
        let bias = bias.as_ref();
        let y = self.empty_in(format, self.dtype(), &[&[n, co], &*size].concat())?;
        let tracked = grad_enabled()
            && (x.requires_grad() || w.requires_grad() || bias.is_some_and(Tensor::requires_grad));
        let needs_z = tracked && p.act != Activation::Identity && !p.act.reads_output();
        let z = if needs_z { Some(self.empty_in(format, self.dtype(), y.shape())?) } else { None };
        let (xo, wo, yo) = (x.operand(), w.operand(), y.operand());
        let (bo, zo) = (bias.map(Tensor::operand), z.as_ref().map(Tensor::operand));
        let mut io = ConvIo::new(xo.view()?, wo.view()?, yo.view_mut()?);
        io.bias = bo.as_ref().map(|b| b.view()).transpose()?;
        io.z = zo.as_ref().map(|z| z.view_mut()).transpose()?;
        match way {
            Way::Forward => self.device().conv(p, io)?,
            Way::Transposed => self.device().conv_transpose(p, io)?,
        }

        let mut inputs = vec![&x, &w];
        inputs.extend(bias);
        let (plain, p) = (y.clone(), *p);
        Ok(y.record(op, &inputs, || {
            let (x, w, bias) = (Saved::new(&x), Saved::new(&w), bias.map(Saved::new));
            let map = Bilinear {
                op,
                p: p.act(Activation::Identity),
                transposed: way == Way::Transposed,
                shapes: [x.any().shape(), w.any().shape(), plain.shape()].map(<[usize]>::to_vec),
            };
            let saved = match p.act {
                Activation::Identity => None,
                _ => Some(Saved::new(z.as_ref().unwrap_or(&plain))),
            };
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let at = Placed::new(cx, &[(0, Some(&x)), (1, Some(&w)), (2, bias.as_ref())])?;
                    return compose(cx, &at.list, |t| {
                        let mut y = map.output(&t[0], &t[1])?;
                        if let Some(b) = t.get(2) {
                            let mut shape = vec![1; y.rank()];
                            shape[1] = b.numel();
                            y = y.add(&b.reshape(&shape)?)?;
                        }
                        Ok(vec![y.activation(p.act)?])
                    });
                }
                let (dx, dw, db) = (cx.target_like_input(0)?, cx.target_like_input(1)?, cx.target(2)?);
                let dy = cx.dy()?.in_format(format)?;
                let (x, w) = (x.get(cx)?.operand(), w.get(cx)?.operand());
                let saved = match &saved {
                    Some(s) => Some(s.get(cx)?.operand()),
                    None => None,
                };
                let dyo = dy.operand();
                let mut io = ConvBwd::new(dyo.view()?);
                io.x = Some(x.view()?);
                io.w = Some(w.view()?);
                io.saved = saved.as_ref().map(|s| s.view()).transpose()?;
                (io.dx, io.dw, io.dbias) = (out(&dx)?, out(&dw)?, out(&db)?);
                match way {
                    Way::Forward => dy.device().conv_bwd(&p, io)?,
                    Way::Transposed => dy.device().conv_transpose_bwd(&p, io)?,
                }
                Ok(())
            }
        }))
    }

    /// Convolution of x [N, Ci, H, W] with weight [Co, Ci/groups, kH, kW] whose taps are displaced by `offset` [N, D*kH*kW*2, Ho, Wo] (per tap
    /// along H, then W; D groups of channels share offsets), read bilinearly with 0 outside, times `mask` [N, D*kH*kW, Ho, Wo], plus bias
    /// `[Co]`. Oracle `torchvision.ops.deform_conv2d`. Errors: `Invalid` as for [`conv`](Tensor::conv), and maps that do not fit.
    pub fn deform_conv(
        &self,
        weight: &Tensor,
        offset: &Tensor,
        mask: Option<&Tensor>,
        bias: Option<&Tensor>,
        p: &Conv,
    ) -> Result<Tensor> {
        const OP: &str = "deform_conv";
        for t in [Some(weight), Some(offset), mask, bias].into_iter().flatten() {
            same_device(OP, self, t)?;
        }
        same_dtype(OP, self, weight)?;
        let (n, _, spatial) = planes(OP, self)?;
        let ([co, _], k) = kernel(OP, weight, spatial.len())?;
        let y = self.like(&[&[n, co], &*p.output_size(spatial, k)?].concat())?;
        let (x, w, offset) = (self.contiguous()?, weight.contiguous()?, offset.contiguous()?);
        let (mask, bias) = (whole(mask)?, whole(bias)?);
        let (xo, wo, oo, yo) = (x.operand(), w.operand(), offset.operand(), y.operand());
        let (mo, bo) = (mask.as_ref().map(Tensor::operand), bias.as_ref().map(Tensor::operand));
        let io = DeformConvIo::new(xo.view()?, wo.view()?, oo.view()?, yo.view_mut()?)
            .mask(mo.as_ref().map(|m| m.view()).transpose()?)
            .bias(bo.as_ref().map(|b| b.view()).transpose()?);
        self.device().deform_conv(p, io)?;

        let mut inputs = vec![&x, &w, &offset];
        inputs.extend(&mask);
        inputs.extend(&bias);
        let p = *p;
        Ok(y.record(OP, &inputs, || {
            let (x, w, offset) = (Saved::new(&x), Saved::new(&w), Saved::new(&offset));
            let mask = mask.as_ref().map(Saved::new);
            move |cx: &mut BackwardCtx<'_>| {
                let (dx, dw, doffset) = (cx.target(0)?, cx.target(1)?, cx.target(2)?);
                let dmask = if mask.is_some() { cx.target(3)? } else { None };
                let dbias = cx.target(if mask.is_some() { 4 } else { 3 })?;
                let dy = cx.dy()?.contiguous()?;
                let (x, w, offset) = (x.get(cx)?.operand(), w.get(cx)?.operand(), offset.get(cx)?.operand());
                let mask = match &mask {
                    Some(m) => Some(m.get(cx)?.operand()),
                    None => None,
                };
                let dyo = dy.operand();
                let io = DeformConvBwd::new(dyo.view()?, x.view()?, w.view()?, offset.view()?)
                    .mask(mask.as_ref().map(|m| m.view()).transpose()?)
                    .dx(out(&dx)?)
                    .dw(out(&dw)?)
                    .doffset(out(&doffset)?)
                    .dmask(out(&dmask)?)
                    .dbias(out(&dbias)?);
                Ok(dy.device().deform_conv_bwd(&p, io)?)
            }
        }))
    }

    /// Windows as columns: [N, C, S] to [N, C*K, P] with K the elements of `kernel`, P the windows of `p` (row-major); 0 outside. Oracle
    /// `F.unfold`. Errors: `Invalid` for windows that do not fit.
    pub fn im2col(&self, kernel: &[usize], p: &Conv) -> Result<Tensor> {
        let (n, c, spatial) = planes("im2col", self)?;
        let windows = p.output_size(spatial, kernel)?.numel();
        let x = self.contiguous()?;
        let y = self.like(&[n, c.saturating_mul(taps(kernel)), windows])?;
        self.device().im2col(p, kernel, x.operand().view()?, y.operand().grad(false)?)?;
        let (p, kernel) = (*p, kernel.to_vec());
        let full = spatial.to_vec();
        Ok(y.record("im2col", &[self], || {
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let dx = cx.dy()?.col2im(&full, &kernel, &p)?;
                    return cx.give(0, dx);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?.contiguous()?;
                Ok(dy.device().col2im(&p, &kernel, dy.operand().view()?, dx.out()?)?)
            }
        }))
    }

    /// Columns [N, C*K, P] added up at the places of an input [N, C, `spatial`] that [`im2col`](Tensor::im2col) reads them from. Oracle
    /// `F.fold`. Errors: `Invalid` for rank, channels not divisible by K, another number of windows.
    pub fn col2im(&self, spatial: &[usize], kernel: &[usize], p: &Conv) -> Result<Tensor> {
        const OP: &str = "col2im";
        let &[n, rows, _] = self.shape() else {
            return Err(invalid(OP, "x", "shape [N, C*K, P]", format!("{:?}", self.shape())));
        };
        let taps = taps(kernel);
        if taps == 0 || !rows.is_multiple_of(taps) {
            let expected = format!("a multiple of the {taps} elements of a window on axis 1");
            return Err(invalid(OP, "x", expected, format!("shape {:?}", self.shape())));
        }
        let x = self.contiguous()?;
        let y = self.like(&[&[n, rows / taps], spatial].concat())?;
        self.device().col2im(p, kernel, x.operand().view()?, y.operand().grad(false)?)?;
        let (p, kernel) = (*p, kernel.to_vec());
        Ok(y.record(OP, &[self], || {
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    let dx = cx.dy()?.im2col(&kernel, &p)?;
                    return cx.give(0, dx);
                }
                let Some(dx) = cx.target(0)? else { return Ok(()) };
                let dy = cx.dy()?.contiguous()?;
                Ok(dy.device().im2col(&p, &kernel, dy.operand().view()?, dx.out()?)?)
            }
        }))
    }

    /// Depthwise convolution of sequences `[N, C, L]` that reads the present and the K - 1 elements before it, zeros before the first:
    /// y_l = act(bias + sum over j of weight_j * x_(l - (K - 1) + j)), weight `[C, K]`, bias `[C]`, floats. Source the convolution of Mamba
    /// (Gu and Dao, 2023), `causal_conv1d_fn`. Errors: `Invalid` for shapes and dtypes that do not fit.
    pub fn causal_conv1d(&self, weight: &Tensor, bias: Option<&Tensor>, act: Activation) -> Result<Tensor> {
        Ok(self.causal(weight, bias, act, None, false)?.0)
    }

    /// As [`causal_conv1d`](Tensor::causal_conv1d) for a sequence that comes in parts: `state` holds the K - 1 elements before this part,
    /// `[N, C, K - 1]` (zeros where absent); gives the result and the state for the next part. States carry no gradient.
    pub fn causal_conv1d_with_state(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        act: Activation,
        state: Option<&Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let (y, next) = self.causal(weight, bias, act, state, true)?;
        Ok((y, next.ok_or_else(|| invalid("causal_conv1d", "new_state", "a state", "none"))?))
    }

    fn causal(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        act: Activation,
        state: Option<&Tensor>,
        with_state: bool,
    ) -> Result<(Tensor, Option<Tensor>)> {
        const OP: &str = "causal_conv1d";
        if !fuses(act) {
            let (y, next) = self.causal(weight, bias, Activation::Identity, state, with_state)?;
            return Ok((y.activation(act)?, next));
        }
        for t in [Some(weight), bias, state].into_iter().flatten() {
            same_device(OP, self, t)?;
        }
        same_dtype(OP, self, weight)?;
        let (&[n, c, _], &[_, k]) = (self.shape(), weight.shape()) else {
            let got = format!("shapes {:?} and {:?}", self.shape(), weight.shape());
            return Err(invalid(OP, "weight", "x [N, C, L] and weight [C, K]", got));
        };
        let (x, w, bias) = (self.contiguous()?, weight.contiguous()?, whole(bias)?);
        let state = whole(state.map(Tensor::detach).as_ref())?;
        let y = x.like(x.shape())?;
        let next = if with_state { Some(x.like(&[n, c, k.saturating_sub(1)])?) } else { None };
        let (xo, wo, yo) = (x.operand(), w.operand(), y.operand());
        let [bo, so, no] = [&bias, &state, &next].map(|t| operand(t.as_ref()));
        let mut io = CausalConvIo::new(xo.view()?, wo.view()?, yo.view_mut()?);
        (io.bias, io.state, io.new_state) = (view(&bo)?, view(&so)?, view_mut(&no)?);
        y.device().causal_conv1d(act, io)?;
        let mut inputs = Inputs { list: vec![&x, &w] };
        let ib = inputs.push(bias.as_ref());
        let y = y.record(OP, &inputs.list, || {
            let (x, w) = (Saved::new(&x), Saved::new(&w));
            let (bias, state) = (save(bias.as_ref()), save(state.as_ref()));
            move |cx: &mut BackwardCtx<'_>| {
                let (dx, dw, db) = (cx.target(0)?, cx.target(1)?, cx.target(ib)?);
                let dy = cx.dy()?.contiguous()?;
                let (x, w) = (x.get(cx)?.operand(), w.get(cx)?.operand());
                let (bias, state, dyo) = (saved(cx, &bias)?, saved(cx, &state)?, dy.operand());
                let mut io = CausalConvBwd::new(dyo.view()?, x.view()?, w.view()?);
                (io.bias, io.state) = (view(&bias)?, view(&state)?);
                (io.dx, io.dw, io.dbias) = (out(&dx)?, out(&dw)?, out(&db)?);
                Ok(dy.device().causal_conv1d_bwd(act, io)?)
            }
        });
        Ok((y, next))
    }
}
