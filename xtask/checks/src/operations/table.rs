//! What the operations are called elsewhere: in PyTorch, and in the training crate. One row per operation; gradients (`X_bwd`) have none.

/// One operation.
pub(super) struct Row {
    /// Name.
    pub(super) op: &'static str,
    /// PyTorch's names; empty if PyTorch has none.
    pub(super) torch: &'static str,
    /// Names in `trefoil-nn`, `Device` where the method is called on the device itself, or `none: ` and the reason.
    pub(super) nn: &'static str,
    /// The operations that compute its gradient, where that is not the operation of the same name with `_bwd`.
    pub(super) gradient: &'static str,
}

/// A row whose gradient is `OP_bwd`, or that has none.
const fn row(op: &'static str, torch: &'static str, nn: &'static str) -> Row {
    Row { op, torch, nn, gradient: "" }
}

impl Row {
    /// Names the operations that compute the gradient.
    const fn gradient(mut self, ops: &'static str) -> Row {
        self.gradient = ops;
        self
    }
}

const DEVICE: &str = "Device";

/// All operations, in the order of the families.
pub(super) const ROWS: &[Row] = &[
    row("id", "`Tensor.device`", DEVICE),
    row("caps", "`torch.cuda.get_device_properties`", DEVICE),
    row("alloc", "`torch.empty`", "`Tensor::empty`"),
    row("write_bytes", "`torch.tensor`, `Tensor.to` from the host", "`Tensor::from_slice`"),
    row("read_bytes", "`Tensor.cpu`, `Tensor.tolist`", "`Tensor::to_vec`, `Tensor::item`"),
    row("copy", "`Tensor.copy_`", DEVICE),
    row("synchronize", "`torch.cuda.synchronize`", DEVICE),
    row("fork_stream", "`torch.cuda.Stream`", DEVICE),
    row("record", "`torch.cuda.Event.record`", DEVICE),
    row("wait", "`torch.cuda.Stream.wait_event`", DEVICE),
    row("adopt", "", "`Tensor::to_device`"),
    row("counters", "", DEVICE),
    row("memory", "`torch.cuda.memory_stats`", DEVICE),
    row("reset_peak", "`torch.cuda.reset_peak_memory_stats`", DEVICE),
    row("trim", "`torch.cuda.empty_cache`", DEVICE),
    row("warmup", "", DEVICE),
    row("explain", "", DEVICE),
    row("compile_raw", "`torch.utils.cpp_extension.load_inline`", DEVICE),
    row("launch_raw", "", DEVICE),
    row("import", "`torch.from_dlpack`", DEVICE),
    row("export", "`Tensor.data_ptr`", DEVICE),
    row("raw_stream", "`torch.cuda.Stream.cuda_stream`", DEVICE),
    row("adopt_stream", "`torch.cuda.ExternalStream`", DEVICE),
    row("pin_variant", "", DEVICE),
    row("explain_calls", "", DEVICE),
    row("tune_calls", "`torch.backends.cudnn.benchmark`", DEVICE),
    row("capture_calls", "`torch.cuda.graph`", DEVICE),
    row("profile_calls", "`torch.profiler.profile`", "`Trainer::profile`"),
    // Elementwise.
    row(
        "unary",
        "`torch.exp`, `torch.sqrt`, `torch.clamp`, `torch.isnan`, ...",
        "`Tensor::unary`, `Tensor::exp`, ...",
    ),
    row(
        "binary",
        "`torch.add`, `torch.mul`, `torch.maximum`, `torch.eq`, ...",
        "`Tensor::binary`, `Tensor::add`, ...",
    ),
    row(
        "ternary",
        "`torch.where`, `torch.lerp`, `torch.addcmul`, ...",
        "`Tensor::ternary`, `Tensor::where_`, ...",
    ),
    row("cast", "`Tensor.to`, `Tensor.float`, `Tensor.half`, ...", "`Tensor::to_dtype`").gradient("cast"),
    // Activation and softmax.
    row("activation", "`F.relu`, `F.gelu`, `F.silu`, ...", "`Tensor::activation`, `Tensor::relu`, ..."),
    row("activation_bias_bwd", "autograd of `F.gelu(z + bias)`, ...", "`Tensor::linear`, `Tensor::linear_ragged`"),
    row("prelu", "`F.prelu`", "`Tensor::prelu`"),
    row("gated", "`F.glu`", "`Tensor::glu`, `Tensor::gated_by`"),
    row("softmax", "`F.softmax`, `F.log_softmax`", "`Tensor::softmax`, `Tensor::log_softmax`"),
    row("masked_softmax", "`F.softmax` of `scale * x + mask`, `F.softmin`", "`Tensor::masked_softmax`"),
    // Reductions.
    row(
        "reduce",
        "`torch.sum`, `torch.mean`, `torch.amax`, `torch.var`, `torch.logsumexp`, ...",
        "`Tensor::reduce`, `Tensor::sum`, ...",
    ),
    row(
        "arg_reduce",
        "`torch.argmax`, `torch.argmin`, `torch.max(dim)`",
        "`Tensor::argmax`, `Tensor::max_with_index`, ...",
    ),
    row("mean_var", "`torch.var_mean`", "`Tensor::mean_var`").gradient("reduce_bwd"),
    row("min_max", "`torch.aminmax`", "`Tensor::min_max`").gradient("reduce_bwd"),
    row("dot", "`torch.dot`, `torch.linalg.vecdot`", "`Tensor::dot`"),
    row("sum_to_shape", "`Tensor.sum_to_size`", "`Tensor::sum_to_shape`").gradient("strided_copy"),
    // Movement and creation.
    row("strided_copy", "`Tensor.contiguous`, `Tensor.clone`", "`Tensor::contiguous`, `Tensor::copy`")
        .gradient("strided_copy"),
    row("concat", "`torch.cat`, `torch.stack`", "`Tensor::concat`, `Tensor::stack`").gradient("strided_copy"),
    row("fill", "`torch.full`, `torch.zeros`, `Tensor.fill_`", "`Tensor::full`, `Tensor::fill`"),
    row("fill_bytes", "", "none: it sets raw bits; `Tensor::full` and `Tensor::write_bytes` set elements"),
    row("arange", "`torch.arange`", "`Tensor::arange`"),
    row("linspace", "`torch.linspace`", "`Tensor::linspace`"),
    row("pad", "`F.pad`", "`Tensor::pad`"),
    row("flip", "`torch.flip`", "`Tensor::flip`").gradient("flip"),
    row("roll", "`torch.roll`", "`Tensor::roll`").gradient("roll"),
    row("triangle", "`torch.tril`, `torch.triu`", "`Tensor::tril`, `Tensor::triu`").gradient("triangle"),
    row("repeat_interleave", "`torch.repeat_interleave`", "`Tensor::repeat_interleave`"),
    row("unfold_bwd", "gradient of `Tensor.unfold`, which is a view", "`Tensor::unfold`"),
    // Gather and scatter.
    row("index_select", "`torch.index_select`", "`Tensor::index_select`").gradient("index_add"),
    row("index_add", "`torch.index_add`", "`Tensor::index_add`").gradient("index_select"),
    row("index_copy", "`torch.index_copy`", "`Tensor::index_copy`").gradient("index_fill, index_select"),
    row("index_fill", "`torch.index_fill`", "`Tensor::index_fill`").gradient("index_fill"),
    row("gather", "`torch.gather`, `torch.take_along_dim`", "`Tensor::gather`").gradient("scatter_reduce"),
    row("scatter", "`torch.scatter`", "`Tensor::scatter`"),
    row(
        "scatter_reduce",
        "`torch.scatter_reduce`, `torch.scatter_add`",
        "`Tensor::scatter_reduce`, `Tensor::scatter_add`",
    ),
    row("index_put", "`torch.index_put`", "`Tensor::index_put`").gradient("index_put, index_select"),
    row("masked_scatter", "`torch.masked_scatter`", "`Tensor::masked_scatter`").gradient("masked_select"),
    row("masked_select", "`torch.masked_select`", "`Tensor::masked_select`"),
    row("nonzero", "`torch.nonzero`, `torch.argwhere`", "`Tensor::nonzero`"),
    row("one_hot", "`F.one_hot`", "`Tensor::one_hot`"),
    // Matrix products.
    row("gemm", "`torch.matmul`, `torch.addmm`, `F.linear`, ...", "`Tensor::matmul`, `Tensor::linear`"),
    row("gemm_grouped", "", "`Tensor::gemm_grouped`").gradient("gemm_grouped"),
    row("gemm_ragged", "`F.grouped_mm`", "`Tensor::gemm_ragged`, `Tensor::linear_ragged`")
        .gradient("gemm_ragged, gemm_ragged_bwd, segment_reduce"),
    row("gemm_ragged_bwd", "`F.grouped_mm` of two matrices", "`Tensor::gemm_ragged_sum`").gradient("gemm_ragged"),
    row("bilinear_ragged", "`F.bilinear`, `torch.segment_reduce`", "`Tensor::bilinear_ragged`"),
    row("quantize", "", "`Tensor::quantize`, `Tensor::fake_quantize`"),
    row("dequantize", "", "`Tensor::dequantize`"),
    row("gemm_quantized", "", "`Tensor::linear_quantized`"),
    row("gemm_w8a8", "", "`Tensor::linear_w8a8`"),
    row("gemm_fp8", "`F.scaled_mm`", "`Tensor::scaled_mm_fp8`"),
    row("sparse_compress", "`torch.sparse.to_sparse_semi_structured`", "`Tensor::sparse_compress`"),
    row("sparse_decompress", "`Tensor.to_dense` of it", "`SemiSparse::to_dense`"),
    row("gemm_2to4", "`torch.mm` with it", "`SemiSparse::matmul`"),
    // Fourier transforms.
    row(
        "fft",
        "`torch.fft.fft`, `torch.fft.ifft`, ...",
        "`Tensor::fft`, `Tensor::ifft`, `Tensor::fftn`, ...",
    )
    .gradient("fft"),
    row("rfft", "`torch.fft.rfft`, `torch.stft`", "`Tensor::rfft`, `Tensor::stft`").gradient("irfft"),
    row("irfft", "`torch.fft.irfft`, `torch.istft`", "`Tensor::irfft`, `Tensor::istft`").gradient("rfft"),
    // Neural fields.
    row("hash_grid_encode", "", "`Tensor::hash_grid_encode`"),
    row("trilinear_interpolate", "`F.grid_sample` of a volume", "`Tensor::trilinear_interpolate`"),
    row("spherical_harmonics", "", "`Tensor::spherical_harmonics`"),
    row("gaussian_covariance", "", "`Tensor::gaussian_covariance`"),
    row("project_gaussians", "", "`Tensor::project_gaussians`"),
    row("rasterize_gaussians", "", "`ProjectedGaussians::rasterize`"),
    row("ray_sampling", "", "`Tensor::ray_sampling`"),
    row("importance_sampling", "", "`Tensor::importance_sampling`"),
    row("volume_render", "", "`Tensor::volume_render`"),
    // Convolution.
    row("conv", "`F.conv1d`, `F.conv2d`, `F.conv3d`", "`Tensor::conv`, `Tensor::conv2d`, ..."),
    row("conv_transpose", "`F.conv_transpose2d`, ...", "`Tensor::conv_transpose`"),
    row("im2col", "`F.unfold`", "`Tensor::im2col`").gradient("col2im"),
    row("col2im", "`F.fold`", "`Tensor::col2im`").gradient("im2col"),
    row("causal_conv1d", "", "`Tensor::causal_conv1d`"),
    row("deform_conv", "`torchvision.ops.deform_conv2d`", "`Tensor::deform_conv`"),
    // Normalization, pooling, interpolation.
    row("row_norm", "`F.layer_norm`, `F.rms_norm`", "`Tensor::row_norm`"),
    row("group_norm", "`F.group_norm`", "`Tensor::group_norm`"),
    row("instance_norm", "`F.instance_norm`", "`Tensor::instance_norm`").gradient("group_norm_bwd"),
    row("batch_norm", "`F.batch_norm`", "`Tensor::batch_norm`"),
    row("l2_normalize", "`F.normalize`", "`Tensor::l2_normalize`"),
    row(
        "max_pool",
        "`F.max_pool2d`, `F.adaptive_max_pool2d`, ...",
        "`Tensor::max_pool`, `Tensor::adaptive_max_pool`, ...",
    ),
    row(
        "avg_pool",
        "`F.avg_pool2d`, `F.adaptive_avg_pool2d`, ...",
        "`Tensor::avg_pool`, `Tensor::adaptive_avg_pool`, ...",
    ),
    row("interpolate", "`F.interpolate`", "`Tensor::interpolate`"),
    row("affine_grid", "`F.affine_grid`", "`Tensor::affine_grid`"),
    row("grid_sample", "`F.grid_sample`", "`Tensor::grid_sample`"),
    row("roi_align", "`torchvision.ops.roi_align`", "`Tensor::roi_align`"),
    row("nms", "`torchvision.ops.nms`", "`Tensor::nms`"),
    // Attention, embedding, recurrent networks.
    row("attention", "`F.scaled_dot_product_attention`", "`ScaledDotProductAttention::forward`"),
    row("rope", "", "`Tensor::rope`"),
    row("embedding", "`F.embedding`", "`Tensor::embedding`"),
    row("embedding_renorm", "`torch.embedding_renorm_`", "`Tensor::embedding_renorm`"),
    row("rnn", "`nn.LSTM`, `nn.GRU`, `nn.RNN`", "`Tensor::rnn`"),
    row("rnn_gates", "", "none: two `Tensor::linear` compute it with gradients"),
    row("lstm_cell", "`nn.LSTMCell`", "`Tensor::lstm_cell`"),
    row("gru_cell", "`nn.GRUCell`", "`Tensor::gru_cell`"),
    row("conv_lstm", "", "`Tensor::conv_lstm`"),
    // Graphs and meshes.
    row("csr", "`Tensor.to_sparse_csr`", "`Graph::new`, `Groups::new`"),
    row("degree", "`torch_geometric.utils.degree`", "`Tensor::degree`"),
    row("sym_normalize", "", "`Graph::sym_norm`"),
    row("spmm", "`torch.sparse.mm`", "`Graph::spmm`"),
    row("message_passing", "", "`Graph::message_passing`"),
    row("sddmm", "`torch.sparse.sampled_addmm`", "`Graph::sddmm`"),
    row("group_reduce", "`torch.scatter_reduce`", "`Tensor::group_reduce`"),
    row("edge_softmax", "", "`Graph::edge_softmax`, `Tensor::group_softmax`"),
    row("gat", "", "`Graph::gat`"),
    row("mesh_conv", "", "`Mesh::conv`"),
    row("mesh_plan", "", "`Mesh::new`"),
    row("mesh_pool", "`torch.topk` and indexing", "`Tensor::mesh_pool`"),
    row("diffusion_conv", "", "`Tensor::diffusion_conv`"),
    // Losses.
    row(
        "loss",
        "`F.mse_loss`, `F.huber_loss`, `F.binary_cross_entropy`, ...",
        "`losses::MseLoss`, `losses::HuberLoss`, ...",
    ),
    row("loss_list", "", "`losses::LossList`"),
    row("cross_entropy", "`F.cross_entropy`", "`losses::CrossEntropyLoss`"),
    row(
        "row_loss",
        "`F.nll_loss`, `F.kl_div`, `F.triplet_margin_loss`, ...",
        "`losses::NllLoss`, `losses::KlDivLoss`, ...",
    ),
    row("batch_loss", "", "`losses::NtXentLoss`, `losses::InfoNceLoss`, ..."),
    row(
        "seq_loss",
        "`F.ctc_loss`, `torchaudio.functional.rnnt_loss`",
        "`losses::CtcLoss`, `losses::RnntLoss`",
    ),
    row("stft_loss", "", "`losses::StftLoss`"),
    // Optimizers.
    row("optimizer_step", "`torch.optim.SGD`, `torch.optim.AdamW`, ...", "`Optimizer::step`"),
    row("adaptive_step", "", "`Optimizer::prodigy`, `Optimizer::schedule_free_adamw`, ..."),
    row("optimizer_step_rows", "`torch.optim.SparseAdam`", "`optim::SparseOptimizer`"),
    row("optimizer_step_packed", "", "`Optimizer::moments_in_bf16`, `Optimizer::moments_in_8_bits`"),
    row("clip_grad_norm", "`torch.nn.utils.clip_grad_norm_`", "`Optimizer::clip_grad_norm`"),
    row("grad_factor", "`torch.nn.utils.get_total_norm`", "`Optimizer::step_clipped`"),
    row("clip_grad_value", "`torch.nn.utils.clip_grad_value_`", "`Optimizer::clip_grad_value`"),
    row("clip_grad_adaptive", "", "`Optimizer::clip_grad_adaptive`"),
    row("unscale_grads", "`torch.amp.GradScaler.unscale_`", "`Optimizer::loss_scaling`"),
    row("update_loss_scale", "`torch.amp.GradScaler.update`", "`Optimizer::loss_scaling`"),
    // Random numbers.
    row(
        "random",
        "`torch.rand`, `torch.randn`, `torch.randint`",
        "`Tensor::random`, `Tensor::rand`, `Tensor::randn`",
    ),
    row("bernoulli", "`torch.bernoulli`", "`Tensor::bernoulli`"),
    row("permutation", "`torch.randperm`", "`Tensor::permutation`"),
    row("categorical", "`torch.multinomial`", "`Tensor::multinomial`"),
    row("dropout", "`F.dropout`", "`Tensor::dropout`"),
    row("bias_dropout", "", "`Tensor::bias_dropout`"),
    // Scans, sorting, distances.
    row("cumsum", "`torch.cumsum`", "`Tensor::cumsum`").gradient("cumsum"),
    row("segment_reduce", "`torch.segment_reduce`", "`Tensor::segment_reduce`"),
    row("sort", "`torch.sort`, `torch.argsort`", "`Tensor::sort`, `Tensor::argsort`"),
    row("topk", "`torch.topk`", "`Tensor::topk`").gradient("sort_bwd"),
    row("linear_assignment", "", "`Tensor::linear_assignment`"),
    row("search_sorted", "`torch.searchsorted`", "`Tensor::search_sorted`"),
    row("cdist", "`torch.cdist`", "`Tensor::cdist`"),
    row("pdist", "`F.pdist`", "`Tensor::pdist`"),
    row("similarity", "`F.cosine_similarity`, `F.pairwise_distance`", "`Tensor::similarity`, ..."),
    row("distance_matrix", "", "`Tensor::distance_matrix`").gradient("gemm"),
    row("nearest", "`torch.topk` of distances", "`Tensor::nearest`, `Tensor::kmeans_step`")
        .gradient("gemm"),
    row("pq_tables", "", "`ProductQuantizer::tables`"),
    row("pq_scan", "", "`ProductQuantizer::search`"),
    // Language models.
    row("fused_linear_cross_entropy", "", "`LinearCrossEntropyLoss::forward`"),
    row("kv_cache_append", "", "`PagedCache::append`"),
    row("flash_decode", "", "`Tensor::flash_decode`"),
    row("paged_attention", "", "`Tensor::paged_attention`"),
    row("logit_processors", "", "`Tensor::process_logits`"),
    row("sample_tokens", "", "`Tensor::sample_tokens`"),
    // Linear algebra.
    row(
        "cholesky",
        "`torch.linalg.cholesky`, `torch.linalg.cholesky_ex`",
        "`Tensor::cholesky`, `Tensor::cholesky_ex`",
    ),
    row("triangular_solve", "`torch.linalg.solve_triangular`", "`Tensor::solve_triangular`"),
    row("lu_factor", "`torch.linalg.lu_factor_ex`", "`Tensor::lu_factor`"),
    row(
        "lu_solve",
        "`torch.linalg.lu_solve`, `torch.linalg.solve`, `torch.linalg.inv`",
        "`LuFactors::solve`, `Tensor::solve`, `Tensor::inv`",
    )
    .gradient("lu_solve, gemm"),
    row("lu_det", "`torch.linalg.det`, `torch.linalg.slogdet`", "`Tensor::det`, `Tensor::slogdet`")
        .gradient("lu_solve"),
    row("ldl_factor", "`torch.linalg.ldl_factor_ex`", "`Tensor::ldl_factor`"),
    row("ldl_solve", "`torch.linalg.ldl_solve`", "`LdlFactors::solve`").gradient("ldl_solve"),
    row("newton_schulz", "", "`Tensor::newton_schulz`"),
    row("qr", "`torch.linalg.qr`, `torch.linalg.lstsq`", "`Tensor::qr`, `Tensor::lstsq`")
        .gradient("gemm, triangular_solve"),
    row("eigh", "`torch.linalg.eigh`, `torch.linalg.eigvalsh`", "`Tensor::eigh`, `Tensor::eigvalsh`")
        .gradient("gemm"),
    row(
        "svd",
        "`torch.linalg.svd`, `torch.linalg.svdvals`, `torch.linalg.pinv`, `torch.linalg.matrix_rank`, `torch.linalg.cond`",
        "`Tensor::svd`, `Tensor::svdvals`, `Tensor::pinv`, `Tensor::matrix_rank`, `Tensor::cond`",
    )
    .gradient("gemm"),
    // Mixtures of experts.
    row("moe_router", "", "`Tensor::moe_router`"),
    row("moe_permute", "", "`Tensor::moe_permute`"),
    row("moe_unpermute", "", "`Tensor::moe_unpermute`"),
    // State-space models, linear attention.
    row("associative_scan", "", "`Tensor::associative_scan`"),
    row("gla_scan", "", "`Tensor::gla_scan`"),
    row("gated_delta_scan", "", "`Tensor::gated_delta_scan`"),
    row("selective_scan", "", "`Tensor::selective_scan`"),
    row("ssd_scan", "", "`Tensor::ssd_scan`"),
];
