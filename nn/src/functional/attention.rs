//! Scaled dot-product attention.

use trefoil::GradMut;
use trefoil::ops::attention::{
    Attention, AttentionBwd, AttentionIo, AttentionMask, FlashDecode, PagedAttention,
};

use crate::core::autograd::{BackwardCtx, Saved, compose, out, record};
use crate::core::capture;
use crate::core::error::{Result, invalid};
use crate::core::tensor::{Operand, Tensor, same_device};
use crate::functional::derivatives::attention::{Hidden, composed};
use crate::functional::operand::{Inputs, Placed, operand, save, saved, view, view_mut};

/// softmax(scale Q K^T + bias) V over the visible keys, `torch.nn.functional.scaled_dot_product_attention`, without the matrix of scores in
/// memory (Dao, 2023). A query that sees no key gives 0 and has no gradients.
#[derive(Debug, Clone, Default)]
pub struct ScaledDotProductAttention {
    /// Scale, causality, window, softcap, dropout.
    pub options: Attention<'static>,
    /// Added to the scores; the queries' dtype, broadcasts to `[B, Hq, Lq, Lk]`; it gets a gradient.
    pub bias: Option<Tensor>,
    /// u8, not 0 = visible; broadcasts to `[B, Hq, Lq, Lk]`.
    pub mask: Option<Tensor>,
    /// i32 `[B]`: keys from this one on are invisible.
    pub key_lengths: Option<Tensor>,
    /// Packed sequences: i32 offsets `[n + 1]` of queries and keys. B is 1, and a sequence attends to itself only.
    pub sequences: Option<[Tensor; 2]>,
}

/// The elements of a row side by side, as the kernels want them; any other strides will do.
fn rows(t: &Tensor) -> Result<Tensor> {
    match t.layout().strides().last() {
        Some(&s) if s != 1 && t.shape().last() != Some(&1) => t.contiguous(),
        _ => Ok(t.clone()),
    }
}

/// Tensors of the mask, or what was saved of them.
#[derive(Default)]
struct MaskParts<T> {
    bias: Option<T>,
    mask: Option<T>,
    key_lengths: Option<T>,
    sequences: Option<[T; 2]>,
}

impl MaskParts<Operand> {
    fn views(&self) -> Result<AttentionMask<'_>> {
        let mut m = AttentionMask::new();
        m.bias = view(&self.bias)?;
        m.mask = view(&self.mask)?;
        m.key_lengths = view(&self.key_lengths)?;
        m.sequences = match &self.sequences {
            Some([q, k]) => Some([q.view()?, k.view()?]),
            None => None,
        };
        Ok(m)
    }
}

impl MaskParts<Saved> {
    fn operands(&self, cx: &BackwardCtx<'_>) -> Result<MaskParts<Operand>> {
        Ok(MaskParts {
            bias: saved(cx, &self.bias)?,
            mask: saved(cx, &self.mask)?,
            key_lengths: saved(cx, &self.key_lengths)?,
            sequences: match &self.sequences {
                Some([q, k]) => Some([q.get(cx)?.operand(), k.get(cx)?.operand()]),
                None => None,
            },
        })
    }
}

impl ScaledDotProductAttention {
    /// No mask, scale 1 / sqrt(D).
    pub fn new() -> Self {
        Self::default()
    }

    /// With these options.
    pub fn with(options: Attention<'static>) -> Self {
        ScaledDotProductAttention { options, ..Self::default() }
    }

    /// Queries `[B, Hq, Lq, D]`, keys `[B, Hkv, Lk, D]` and values `[B, Hkv, Lk, Dv]` to `[B, Hq, Lq, Dv]`. Hkv divides Hq: with fewer
    /// heads of keys than of queries, query head h reads head h / (Hq / Hkv). Any strides; the result lies in memory in the order of the
    /// queries' axes, so that heads split from `[B, L, H D]` merge again without a copy. Errors: `Invalid` for shapes, dtypes and masks
    /// that do not fit.
    pub fn forward(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        Ok(self.run(Source::Apart([q, k, v]), false)?.0)
    }

    /// As [`forward`](Self::forward) of queries, keys and values in one tensor `[B, L, 3 H D]`, whose gradient is written in place. The
    /// result is
    /// `[B, H, L, D]`. Errors: as there, and a width that 3 H does not divide.
    pub fn forward_packed(&self, qkv: &Tensor, heads: usize) -> Result<Tensor> {
        let x = qkv.contiguous()?;
        Ok(self.run(Source::Packed(&x, heads), false)?.0)
    }

    /// As [`forward`](Self::forward), and the weights `[B, Hq, Lq, Lk]` before dropout, which carry no gradient.
    pub fn forward_with_weights(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor)> {
        let (o, p) = self.run(Source::Apart([q, k, v]), true)?;
        let p = p.ok_or_else(|| invalid("attention", "weights", "weights", "none"))?;
        Ok((o, p))
    }

    fn parts(&self) -> MaskParts<Operand> {
        MaskParts {
            bias: operand(self.bias.as_ref()),
            mask: operand(self.mask.as_ref()),
            key_lengths: operand(self.key_lengths.as_ref()),
            sequences: self.sequences.as_ref().map(|[q, k]| [q.operand(), k.operand()]),
        }
    }

    fn run(&self, source: Source<'_>, weights: bool) -> Result<(Tensor, Option<Tensor>)> {
        const OP: &str = "attention";
        let [q, k, v] = &match source {
            Source::Apart(all) => all.map(Tensor::clone),
            Source::Packed(x, heads) => packed_heads(x, heads)?,
        };
        same_device(OP, q, k)?;
        same_device(OP, q, v)?;
        let others = [&self.bias, &self.mask, &self.key_lengths];
        others.into_iter().flatten().try_for_each(|t| same_device(OP, q, t))?;
        let (&[b, h, lq, _], &[.., lk, dv]) = (q.shape(), v.shape()) else {
            let got = format!("shapes {:?} and {:?}", q.shape(), v.shape());
            return Err(invalid(OP, "q", "rank 4: [B, H, L, D]", got));
        };
        let (q, k, v) = (rows(q)?, rows(k)?, rows(v)?);
        let strides = q.layout().strides();
        let o = match strides[1] < strides[2] {
            true => q.like(&[b, lq, h, dv])?.transpose(1, 2)?,
            false => q.like(&[b, h, lq, dv])?,
        };
        let packed = match source {
            Source::Apart(_) => None,
            Source::Packed(x, heads) => Some((x, heads)),
        };
        let mut inputs = Inputs { list: packed.map_or_else(|| vec![&q, &k, &v], |(x, _)| vec![x]) };
        let bias_at = inputs.push(self.bias.as_ref());
        let heads = packed.map(|(_, heads)| heads);
        let acc = q.dtype().accumulator();
        let lse = if inputs.tracked() { Some(Tensor::empty(q.device(), acc, &[b, h, lq])?) } else { None };
        let p = if weights { Some(q.like(&[b, h, lq, lk])?) } else { None };

        let parts = self.parts();
        let (qo, ko, vo, oo) = (q.operand(), k.operand(), v.operand(), o.operand());
        let (so, po) = (operand(lse.as_ref()), operand(p.as_ref()));
        let mut io = AttentionIo::new(qo.view()?, ko.view()?, vo.view()?, oo.view_mut()?);
        io.mask = parts.views()?;
        io.lse = view_mut(&so)?;
        io.p = view_mut(&po)?;
        let cell = capture::cell(q.device(), &self.options.rng)?;
        q.device().attention(&drawn(&self.options, &cell)?, io)?;

        let options = self.options;
        let plain = o.clone();
        let name = if packed.is_some() { "packed_attention" } else { OP };
        let outputs = record(name, &inputs.list, vec![o], || {
            let [q, k, v, o] = [&q, &k, &v, &plain].map(Saved::new);
            let lse = save(lse.as_ref());
            let mask = MaskParts {
                bias: save(self.bias.as_ref()),
                mask: save(self.mask.as_ref()),
                key_lengths: save(self.key_lengths.as_ref()),
                sequences: self.sequences.as_ref().map(|[q, k]| [Saved::new(q), Saved::new(k)]),
            };
            let packed = packed.map(|(x, _)| Saved::new(x));
            move |cx: &mut BackwardCtx<'_>| {
                if cx.create_graph() {
                    if options.dropout > 0.0 || mask.sequences.is_some() {
                        return cx.first_order_only();
                    }
                    let bias = (bias_at, mask.bias.as_ref());
                    let at = match &packed {
                        Some(x) => Placed::new(cx, &[(0, Some(x)), bias])?,
                        None => Placed::new(cx, &[(0, Some(&q)), (1, Some(&k)), (2, Some(&v)), bias])?,
                    };
                    let [seen, lengths] = [&mask.mask, &mask.key_lengths]
                        .map(|m| m.as_ref().map(|m| m.constant(cx)).transpose());
                    let (seen, lengths) = (seen?, lengths?);
                    let hidden = Hidden { mask: seen.as_ref(), key_lengths: lengths.as_ref() };
                    return compose(cx, &at.list, |t| {
                        let bias = at.get(t, bias_at);
                        let y = match heads {
                            Some(heads) => {
                                let parts = t[0].split_heads(3, heads)?;
                                composed(&options, [&parts[0], &parts[1], &parts[2]], bias, &hidden)?
                            }
                            None => composed(&options, [&t[0], &t[1], &t[2]], bias, &hidden)?,
                        };
                        Ok(vec![y])
                    });
                }
                let [dq, dk, dv] = grads(cx, heads)?;
                let db = cx.target(bias_at)?;
                let dout = rows(&cx.dy()?)?;
                let (q, k, v) = (q.get(cx)?.operand(), k.get(cx)?.operand(), v.get(cx)?.operand());
                let (o, mask) = (o.get(cx)?.operand(), mask.operands(cx)?);
                let Some(lse) = saved(cx, &lse)? else { return Ok(()) };
                let dout_o = dout.operand();
                let io = AttentionBwd::new(
                    dout_o.view()?,
                    q.view()?,
                    k.view()?,
                    v.view()?,
                    o.view()?,
                    lse.view()?,
                )
                .mask(mask.views()?)
                .dq(part(&dq)?)
                .dk(part(&dk)?)
                .dv(part(&dv)?)
                .dbias(out(&db)?);
                let cell = capture::cell(dout.device(), &options.rng)?;
                Ok(dout.device().attention_bwd(&drawn(&options, &cell)?, io)?)
            }
        });
        Ok((outputs.into_iter().next().unwrap_or(plain), p))
    }
}

/// The options with the generator of a step that is recorded.
fn drawn<'a>(options: &Attention<'static>, cell: &'a Option<capture::Cell>) -> Result<Attention<'a>> {
    let mut options: Attention<'a> = *options;
    options.rng = capture::moved(options.rng, cell)?;
    Ok(options)
}

/// Queries, keys and values of a call.
#[derive(Clone, Copy)]
enum Source<'a> {
    Apart([&'a Tensor; 3]),
    /// In one tensor `[B, L, 3 H D]` with H heads.
    Packed(&'a Tensor, usize),
}

/// The parts of a packed tensor, views `[B, H, L, D]` outside of the graph.
pub(crate) fn packed_heads(x: &Tensor, heads: usize) -> Result<[Tensor; 3]> {
    let parts = heads_of(x, &[heads; 3])?;
    <[Tensor; 3]>::try_from(parts).map_err(|l| invalid("attention", "qkv", "3 parts", format!("{}", l.len())))
}

/// Memory for a gradient, and whether to add to it.
type Part = Option<(Operand, bool)>;

fn part(p: &Part) -> Result<Option<GradMut<'_>>> {
    p.as_ref().map(|(memory, add)| memory.grad(*add)).transpose()
}

fn grads(cx: &mut BackwardCtx<'_>, packed: Option<usize>) -> Result<[Part; 3]> {
    let mut all = [const { None }; 3];
    match packed {
        Some(heads) => {
            if let Some(t) = cx.target(0)? {
                all = packed_heads(t.tensor(), heads)?.map(|p| Some((p.operand(), t.accumulate())));
            }
        }
        None => {
            for (i, slot) in all.iter_mut().enumerate() {
                *slot = cx.target(i)?.map(|t| (t.tensor().operand(), t.accumulate()));
            }
        }
    }
    Ok(all)
}

/// The sizes `[B, L, width]` of heads side by side. Errors: another rank, no heads, a width that their number does not divide.
fn sizes_of_heads(x: &Tensor, heads: usize) -> Result<[usize; 3]> {
    const OP: &str = "split_heads";
    let &[b, l, width] = x.shape() else {
        return Err(invalid(OP, "x", "shape [B, L, n H D]", format!("{:?}", x.shape())));
    };
    if heads == 0 || !width.is_multiple_of(heads) {
        return Err(invalid(OP, "x", format!("a width that {heads} divides"), format!("{width}")));
    }
    Ok([b, l, width])
}

/// `[B, L, (H0 + H1 + ..) D]` as views `[B, Hi, L, D]` outside of the graph; `x` is contiguous.
fn heads_of(x: &Tensor, heads: &[usize]) -> Result<Vec<Tensor>> {
    let total = heads.iter().fold(0usize, |n, &h| n.saturating_add(h));
    let [b, l, width] = sizes_of_heads(x, total)?;
    let wide = x.detach().reshape(&[b, l, total, width / total])?;
    wide.split(2, heads)?.iter().map(|t| t.transpose(1, 2)).collect()
}

impl Tensor {
    /// `[B, L, n H D]` as n views `[B, H, L, D]`: what a packed projection of queries, keys and values makes. Their gradients are joined by
    /// one copy. Errors: `Invalid` for another rank or a width that does not divide.
    pub fn split_heads(&self, n: usize, heads: usize) -> Result<Vec<Tensor>> {
        // Checked first, so that the list is not longer than the width.
        sizes_of_heads(self, n.saturating_mul(heads))?;
        self.split_head_groups(&vec![heads; n])
    }

    /// `[B, L, (H0 + H1 + ..) D]` as views `[B, Hi, L, D]`, one for each number of heads: as [`split_heads`](Tensor::split_heads) where
    /// keys and values have fewer heads than queries. Errors: as there.
    pub fn split_head_groups(&self, heads: &[usize]) -> Result<Vec<Tensor>> {
        let x = self.contiguous()?;
        let parts = heads_of(&x, heads)?;
        let sizes: Vec<[usize; 3]> =
            parts.iter().map(|t| [t.shape()[0], t.shape()[2], t.shape()[1] * t.shape()[3]]).collect();
        Ok(record("split_heads", &[&x], parts, || {
            move |cx: &mut BackwardCtx<'_>| {
                let parts = (sizes.iter().enumerate())
                    .map(|(i, size)| cx.dy_at(i)?.transpose(1, 2)?.reshape(size))
                    .collect::<Result<Vec<_>>>()?;
                let dx = match parts.as_slice() {
                    [one] => one.clone(),
                    all => Tensor::concat(2, &all.iter().collect::<Vec<_>>())?,
                };
                cx.give(0, dx)
            }
        }))
    }

    /// `[B, H, L, D]` as `[B, L, H D]`, the inverse of [`split_heads`](Tensor::split_heads) with n = 1.
    pub fn merge_heads(&self) -> Result<Tensor> {
        let &[b, h, l, d] = self.shape() else {
            return Err(invalid("merge_heads", "x", "shape [B, H, L, D]", format!("{:?}", self.shape())));
        };
        self.transpose(1, 2)?.reshape(&[b, l, h * d])
    }
}

/// Where the keys and values of a cache lie that [`Tensor::paged_attention`] reads.
#[derive(Debug, Clone, Copy)]
pub struct PagedCache<'a> {
    /// Keys `[blocks, block, Hkv, D]`.
    pub keys: &'a Tensor,
    /// Values, as the keys.
    pub values: &'a Tensor,
    /// Blocks of each sequence in order, i32 `[B, M]`; what a sequence does not need may be anything.
    pub block_table: &'a Tensor,
    /// Tokens of each sequence in the cache, the new ones included, i32 `[B]`.
    pub seq_lens: &'a Tensor,
}

impl PagedCache<'_> {
    /// Puts row i of `k` and `v` `[n, Hkv, D]` into flat slot `slots[i]` (i32 or i64 `[n]`; block number * block + offset) of the cache, in
    /// place and outside of the graph; -1 skips a row. Of several rows for one slot the last is kept. Errors: `Invalid` for shapes, dtypes
    /// and a cache that is no row-major tensor; a slot out of range is reported by the next call that waits.
    pub fn append(&self, k: &Tensor, v: &Tensor, slots: &Tensor) -> Result<()> {
        for t in [self.values, k, v, slots] {
            same_device("kv_cache_append", self.keys, t)?;
        }
        let (k, v, slots) = (k.detach().contiguous()?, v.detach().contiguous()?, slots.contiguous()?);
        let [ko, vo, so, kc, vc] = [&k, &v, &slots, self.keys, self.values].map(Tensor::operand);
        let device = self.keys.device();
        device.kv_cache_append(ko.view()?, vo.view()?, so.view()?, kc.view_mut()?, vc.view_mut()?)?;
        self.keys.storage().touch();
        self.values.storage().touch();
        Ok(())
    }
}

impl Tensor {
    /// Attention of these queries `[B, Hq, Lq, D]`, the last Lq tokens of each sequence, to `k` and `v` `[B, Hkv, Lk, D]`, causal: token i
    /// sees the keys up to its own; D at most 256. `key_lengths`, i32 `[B]`: the tokens of each sequence, new ones included. `scale` is
    /// 1 / sqrt(D) where absent. No gradient. Dao (2023). Errors: `Invalid` for shapes and dtypes that do not fit; a length out of range is
    /// reported by the next call that waits.
    pub fn flash_decode(
        &self,
        k: &Tensor,
        v: &Tensor,
        key_lengths: Option<&Tensor>,
        scale: Option<f64>,
    ) -> Result<Tensor> {
        for t in [k, v].into_iter().chain(key_lengths) {
            same_device("flash_decode", self, t)?;
        }
        let (q, k, v) = (self.detach().contiguous()?, k.detach().contiguous()?, v.detach().contiguous()?);
        let (lengths, o) = (key_lengths.map(Tensor::contiguous).transpose()?, q.like(q.shape())?);
        let ([qo, ko, vo, oo], lo) = ([&q, &k, &v, &o].map(Tensor::operand), operand(lengths.as_ref()));
        let io = FlashDecode::new(qo.view()?, ko.view()?, vo.view()?, oo.view_mut()?);
        self.device().flash_decode(io.key_lengths(view(&lo)?).scale(scale))?;
        Ok(o)
    }

    /// Attention of these queries to a cache of blocks, causal: one query per sequence `[B, Hq, D]`, or with `cu_seqlens_q`, i32 `[B + 1]`,
    /// those of all sequences one behind the other `[total, Hq, D]`; D at most 256. `scale` is 1 / sqrt(D) where absent. No gradient. Kwon
    /// et al. (2023). Errors: `Invalid` for shapes and dtypes that do not fit; lengths and blocks out of range are reported by the next call
    /// that waits.
    pub fn paged_attention(
        &self,
        cache: &PagedCache<'_>,
        cu_seqlens_q: Option<&Tensor>,
        scale: Option<f64>,
    ) -> Result<Tensor> {
        let PagedCache { keys, values, block_table, seq_lens } = *cache;
        for t in [keys, values, block_table, seq_lens].into_iter().chain(cu_seqlens_q) {
            same_device("paged_attention", self, t)?;
        }
        let (q, cu) = (self.detach().contiguous()?, cu_seqlens_q.map(Tensor::contiguous).transpose()?);
        let (k, v) = (keys.detach().contiguous()?, values.detach().contiguous()?);
        let (table, lens, o) = (block_table.contiguous()?, seq_lens.contiguous()?, q.like(q.shape())?);
        let [qo, ko, vo, to, lo, oo] = [&q, &k, &v, &table, &lens, &o].map(Tensor::operand);
        let co = operand(cu.as_ref());
        let io =
            PagedAttention::new(qo.view()?, ko.view()?, vo.view()?, to.view()?, lo.view()?, oo.view_mut()?);
        self.device().paged_attention(io.cu_seqlens_q(view(&co)?).scale(scale))?;
        Ok(o)
    }
}
