"""Every operator name that the vocabulary knows, by ``"class kind"``. Filled and read by hand.

The names are those of PyTorch 2.13, TensorFlow 2.21, ONNX and ONNX Runtime 1.31, older names
that models still carry, and what their profilers call work of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

Groups = Mapping[str, str]
"""``"class kind"`` -> operator names, parted by white space."""

# After "aten::". An in-place form (add_) is found under its plain name.
TORCH: Groups = {
    "MatMul matmul": """
        mm bmm addmm addbmm baddbmm matmul linear mv addmv dot vdot ger outer einsum tensordot
        chain_matmul linalg_multi_dot mkldnn_linear bilinear _trilinear kron inner
        _addmm_activation linear_backward matmul_backward mkldnn_linear_backward_weights
        mkldnn_linear_backward_input mkldnn_linear_backward _scaled_mm _grouped_mm _int_mm addr
        _weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu _scaled_grouped_mm
    """,
    "MatMul attention": """
        scaled_dot_product_attention _scaled_dot_product_attention_math
        _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
        _scaled_dot_product_flash_attention_for_cpu_backward _fused_sdp_choice
        _scaled_dot_product_flash_attention_backward _native_multi_head_attention
        _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
        _scaled_dot_product_efficient_attention_backward _transformer_encoder_layer_fwd
        _scaled_dot_product_cudnn_attention_backward _flash_attention_forward
        _flash_attention_backward _efficient_attention_forward _efficient_attention_backward
        _transform_bias_rescale_qkv
    """,
    "MatMul distance": "cdist _cdist_forward _cdist_backward _euclidean_dist pairwise_distance",
    "MatMul linear-algebra": """
        inverse det logdet slogdet cholesky cholesky_solve cholesky_inverse svd qr
        triangular_solve matrix_exp matrix_power trace cross
    """,
    "Convolution convolution": """
        conv1d conv2d conv3d convolution _convolution mkldnn_convolution
        convolution_overrideable thnn_conv2d _slow_conv2d_forward slow_conv3d
        slow_conv3d_forward _conv_depthwise2d conv_depthwise3d slow_conv_dilated2d
        slow_conv_dilated3d cudnn_convolution cudnn_convolution_relu cudnn_convolution_add_relu
        miopen_convolution _nnpack_spatial_convolution conv_tbc
    """,
    "Convolution transposed": """
        conv_transpose1d conv_transpose2d conv_transpose3d slow_conv_transpose2d
        slow_conv_transpose3d cudnn_convolution_transpose
    """,
    "Convolution gradient": """
        convolution_backward convolution_backward_overrideable _slow_conv2d_backward
        conv_tbc_backward
    """,
    "Recurrent recurrent": """
        lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
        mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn _cudnn_rnn_backward
        _thnn_fused_lstm_cell _thnn_fused_gru_cell quantized_lstm _thnn_fused_lstm_cell_backward
        _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell_backward
        _cudnn_rnn_flatten_weight miopen_rnn _thnn_differentiable_lstm_cell_backward
        _thnn_differentiable_gru_cell_backward
    """,
    "Elementwise arithmetic": """
        add sub rsub mul div true_divide floor_divide remainder fmod neg abs sqrt rsqrt
        reciprocal pow square exp exp2 expm1 log log1p log2 log10 erf erfc erfinv sin cos tan
        asin acos atan atan2 sinh cosh asinh acosh atanh ceil floor round trunc frac sign sgn
        lerp addcmul addcdiv maximum minimum clamp clamp_min clamp_max clip fmax fmin positive
        float_power nan_to_num xlogy lgamma digamma hypot logaddexp subtract multiply divide
        negative ldexp special_xlog1py deg2rad i0 polygamma absolute conj_physical copysign
        rad2deg sinc signbit nextafter angle polar complex gcd _add_relu
    """,
    "Elementwise activation": """
        relu relu6 sigmoid tanh silu gelu elu celu selu mish leaky_relu prelu _prelu_kernel
        rrelu rrelu_with_noise hardtanh hardsigmoid hardswish hardshrink softshrink softplus
        threshold log_sigmoid log_sigmoid_forward glu logit sigmoid_backward tanh_backward
        threshold_backward gelu_backward silu_backward elu_backward leaky_relu_backward
        hardtanh_backward hardsigmoid_backward hardswish_backward softplus_backward
        mish_backward _prelu_kernel_backward log_sigmoid_backward glu_backward
        softshrink_backward hardshrink_backward logit_backward
        infinitely_differentiable_gelu_backward rrelu_with_noise_backward glu_backward_jvp
    """,
    "Elementwise comparison": """
        eq ne lt le gt ge equal isnan isinf isfinite isclose allclose where heaviside greater
        greater_equal less less_equal not_equal
    """,
    "Elementwise logical": """
        logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_xor
        bitwise_not bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ __lshift__
        __rshift__
    """,
    "Elementwise masking": "masked_fill _masked_scale native_dropout_backward tril triu",
    "Elementwise quantization": """
        quantize_per_tensor quantize_per_channel dequantize fake_quantize_per_tensor_affine
        fake_quantize_per_channel_affine fake_quantize_per_tensor_affine_cachemask
        fake_quantize_per_channel_affine_cachemask
        fake_quantize_per_tensor_affine_cachemask_backward
        fake_quantize_per_channel_affine_cachemask_backward
    """,
    "Elementwise loss": """
        binary_cross_entropy binary_cross_entropy_backward smooth_l1_loss
        binary_cross_entropy_with_logits smooth_l1_loss_backward huber_loss mse_loss
        huber_loss_backward mse_loss_backward l1_loss kl_div poisson_nll_loss soft_margin_loss
        soft_margin_loss_backward
    """,
    "Reduction/Expansion reduction": """
        sum mean prod amax amin max min argmax argmin all any std var std_mean var_mean norm
        linalg_vector_norm linalg_norm linalg_matrix_norm nansum nanmean logsumexp median mode
        count_nonzero aminmax sum_to_size _foreach_norm is_nonzero dist bincount histc _aminmax
        _grad_sum_to_size _is_all_true _is_any_true frobenius_norm native_norm norm_except_dim
        quantile cov
    """,
    "Reduction/Expansion scan": """
        cumsum cumprod cummax cummin logcumsumexp diff _cummax_helper _cummin_helper
        cumprod_backward cummaxmin_backward _logcumsumexp
    """,
    "Reduction/Expansion softmax": """
        softmax _softmax log_softmax _log_softmax _softmax_backward_data
        _log_softmax_backward_data _safe_softmax _masked_softmax _masked_softmax_backward
    """,
    "Reduction/Expansion normalization": """
        batch_norm native_batch_norm _native_batch_norm_legit _batch_norm_impl_index
        native_batch_norm_backward cudnn_batch_norm _native_batch_norm_legit_no_training
        _batch_norm_with_update _batch_norm_no_update cudnn_batch_norm_backward
        _batch_norm_impl_index_backward batch_norm_backward layer_norm native_layer_norm
        native_layer_norm_backward group_norm native_group_norm native_group_norm_backward
        instance_norm rms_norm _fused_rms_norm _fused_rms_norm_backward _weight_norm_interface
        renorm embedding_renorm _weight_norm_interface_backward batch_norm_update_stats
        cosine_similarity _weight_norm
    """,
    "Reduction/Expansion pooling": """
        max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices
        avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
        adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool1d
        adaptive_max_pool2d adaptive_max_pool3d mkldnn_max_pool2d mkldnn_max_pool2d_backward
        max_pool2d_with_indices_backward max_unpool2d max_pool3d_with_indices_backward
        avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward
        _adaptive_avg_pool3d_backward max_pool1d_with_indices adaptive_max_pool2d_backward
        mkldnn_adaptive_avg_pool2d fractional_max_pool2d mkldnn_adaptive_avg_pool2d_backward
        adaptive_avg_pool3d_backward adaptive_max_pool3d_backward max_pool2d_backward
        mkldnn_max_pool3d mkldnn_max_pool3d_backward max_unpool3d
    """,
    "Reduction/Expansion resize": """
        upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d
        upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
        upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
        _upsample_nearest_exact2d_backward upsample_linear1d_backward
        upsample_bilinear2d_backward upsample_bicubic2d_backward upsample_trilinear3d_backward
        _upsample_bilinear2d_aa grid_sampler grid_sampler_2d grid_sampler_2d_backward
        affine_grid_generator _upsample_nearest_exact1d _upsample_nearest_exact1d_backward
        _upsample_nearest_exact3d _upsample_nearest_exact3d_backward
        _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward
        grid_sampler_3d grid_sampler_3d_backward affine_grid_generator_backward
    """,
    "Reduction/Expansion loss": """
        nll_loss nll_loss_nd nll_loss_forward nll_loss_backward nll_loss2d nll_loss2d_forward
        nll_loss2d_backward cross_entropy_loss ctc_loss _ctc_loss _ctc_loss_backward
        _cudnn_ctc_loss cosine_embedding_loss multi_margin_loss multi_margin_loss_backward
        multilabel_margin_loss hinge_embedding_loss margin_ranking_loss triplet_margin_loss
    """,
    "Reduction/Expansion sort": """
        sort argsort topk kthvalue msort _unique _unique2 searchsorted bucketize unique_dim
        unique_consecutive
    """,
    "Reduction/Expansion expansion": """
        repeat repeat_interleave tile arange linspace logspace range one_hot eye meshgrid
        tril_indices triu_indices
    """,
    "Reduction/Expansion transform": "stft istft",
    "DataMovement view": """
        view _unsafe_view reshape _reshape_alias view_as reshape_as flatten unflatten squeeze
        unsqueeze transpose t permute expand expand_as as_strided slice narrow select split
        split_with_sizes tensor_split chunk unbind unfold detach alias movedim swapaxes swapdims
        broadcast_to broadcast_tensors diagonal numpy_T lift lift_fresh real imag view_as_real
        view_as_complex hsplit vsplit _conj resolve_conj resolve_neg adjoint mT ravel atleast_1d
        atleast_2d result_type data set_data squeeze_copy moveaxis unsafe_chunk unsafe_split
        unsafe_split_with_sizes atleast_3d dsplit
    """,
    "DataMovement copy": """
        copy to _to_copy clone contiguous cat concat stack hstack vstack dstack type_as cpu cuda
        to_dense to_mkldnn mkldnn_reorder_conv2d_weight _to_cpu flip roll rot90 pixel_shuffle
        pixel_unshuffle channel_shuffle slice_backward select_backward diag diag_embed
        block_diag expand_copy _copy_from im2col col2im _pack_padded_sequence
        _pad_packed_sequence _pack_padded_sequence_backward unfold_backward diagonal_backward
        select_scatter slice_scatter _stack concatenate column_stack _conj_copy view_copy
        _reshape_copy narrow_copy permute_copy transpose_copy unsqueeze_copy select_copy
        slice_copy split_copy as_strided_scatter diagonal_scatter pad_sequence _pack_sequence
        mkldnn_reorder_conv3d_weight fliplr flipud native_channel_shuffle _mkldnn_transpose
    """,
    "DataMovement padding": """
        pad constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d
        replication_pad2d replication_pad3d reflection_pad1d_backward reflection_pad2d_backward
        replication_pad2d_backward _pad_circular _pad_enum reflection_pad3d
        reflection_pad3d_backward replication_pad1d_backward replication_pad3d_backward
    """,
    "DataMovement gather": """
        gather index index_select embedding embedding_bag _embedding_bag
        _embedding_bag_forward_only take take_along_dim masked_select nonzero nonzero_numpy
        nonzero_static index_select_backward _unsafe_index
    """,
    "DataMovement scatter": """
        scatter scatter_add scatter_reduce index_add index_put _index_put_impl index_copy
        index_fill embedding_backward masked_scatter put embedding_dense_backward
        _embedding_bag_backward gather_backward index_reduce _unsafe_index_put
        embedding_sparse_backward _embedding_bag_dense_backward masked_scatter_backward
        masked_select_backward value_selecting_reduction_backward
    """,
    "DataMovement fill": """
        fill zero zeros zeros_like ones ones_like full full_like new_zeros new_ones new_full
        scalar_tensor _efficientzerotensor fill_diagonal
    """,
    "DataMovement host": "item _local_scalar_dense",
    "Optimizer update": """
        _fused_adam _fused_adamw _fused_sgd _fused_adagrad
        _amp_foreach_non_finite_check_and_unscale _amp_update_scale
    """,
    "Random random": """
        rand rand_like randn randn_like randint randint_like randperm uniform normal bernoulli
        multinomial exponential geometric cauchy log_normal poisson random dropout
        native_dropout feature_dropout alpha_dropout _fused_dropout binomial _sample_dirichlet
        _standard_gamma feature_alpha_dropout normal_functional
    """,
    "Runtime allocation": """
        empty empty_like empty_strided empty_permuted new_empty new_empty_strided resize
        resize_as set _empty_affine_quantized pin_memory is_pinned record_stream _pin_memory
    """,
    "Runtime query": """
        cudnn_is_acceptable size stride numel dim is_complex is_floating_point is_same_size
        _has_compatible_shallow_copy_type can_cast promote_types requires_grad
        _nested_tensor_from_mask_left_aligned _assert_async is_inference sym_size
        _use_cudnn_ctc_loss _assert_tensor_metadata output_nr retain_grad _version
        _shape_as_tensor is_contiguous storage_offset is_signed element_size
    """,
}

# Op types. A oneDNN form (_MklX, _MklNativeX) that is not here is found under X.
TF: Groups = {
    "MatMul matmul": """
        MatMul BatchMatMul BatchMatMulV2 BatchMatMulV3 _FusedMatMul _MklMatMul _MklFusedMatMul
        _MklNativeFusedMatMul _MklBatchMatMul _MklBatchMatMulV2 Einsum _MklFusedBatchMatMulV2
        SparseMatMul XlaDot SparseTensorDenseMatMul _MklEinsum XlaDotV2
    """,
    "MatMul linear-algebra": """
        MatrixInverse MatrixSolve MatrixTriangularSolve MatrixDeterminant LogMatrixDeterminant
        Cholesky CholeskyGrad Svd Qr SelfAdjointEigV2 Cross
    """,
    "Convolution convolution": """
        Conv Conv2D Conv3D _FusedConv2D _FusedConv3D DepthwiseConv2dNative
        _FusedDepthwiseConv2dNative _MklNativeConv2D _MklNativeConv3D _MklNativeFusedConv2D
        _MklNativeFusedConv3D _MklNativePadWithConv2D _MklNativePadWithFusedConv2D
        _MklNativeDepthwiseConv2dNative _MklNativeConv2DWithBias
        _MklNativeFusedDepthwiseConv2dNative _MklConv2D _MklFusedConv2D Dilation2D XlaConv
        XlaConvV2 _MklFusedDepthwiseConv2dNative _MklPadWithConv2D _MklPadWithFusedConv2D
        _MklConv2DWithBias FusedPadConv2D FusedResizeAndPadConv2D
    """,
    "Convolution gradient": """
        Conv2DBackpropInput Conv2DBackpropInputV2 Conv2DBackpropFilter Conv2DBackpropFilterV2
        Conv3DBackpropInput Conv3DBackpropInputV2 Conv3DBackpropFilter Conv3DBackpropFilterV2
        DepthwiseConv2dNativeBackpropInput DepthwiseConv2dNativeBackpropFilter
        _MklNativeConv2DBackpropInput _MklNativeConv2DBackpropFilter
        _MklNativeConv2DBackpropFilterWithBias _MklNativeConv3DBackpropInputV2
        _MklNativeConv3DBackpropFilterV2 _MklNativeDepthwiseConv2dNativeBackpropInput
        _MklNativeDepthwiseConv2dNativeBackpropFilter Dilation2DBackpropInput
        Dilation2DBackpropFilter _MklConv2DBackpropFilterWithBias
    """,
    "Recurrent recurrent": """
        LSTMBlockCell LSTMBlockCellGrad BlockLSTM BlockLSTMV2 BlockLSTMGrad BlockLSTMGradV2
        GRUBlockCell GRUBlockCellGrad CudnnRNN CudnnRNNV2 CudnnRNNV3 CudnnRNNBackprop
        CudnnRNNBackpropV2 CudnnRNNBackpropV3 CudnnRNNCanonicalToParams CudnnRNNParamsSize
    """,
    "Elementwise arithmetic": """
        Add AddV2 AddN AccumulateNV2 Sub Mul MulNoNan Div RealDiv DivNoNan FloorDiv FloorMod Mod
        TruncateMod TruncateDiv Neg Abs Sqrt SqrtGrad Rsqrt RsqrtGrad Reciprocal Inv
        ReciprocalGrad InvGrad Pow Square SquaredDifference Exp Expm1 Log Log1p Erf Erfc Erfinv
        Ndtri Lgamma Digamma Sin Cos Tan Asin Acos Atan Atan2 Sinh Cosh Asinh Acosh Atanh Ceil
        Floor Round Rint Sign Maximum Minimum ClipByValue Xlogy Xdivy Xlog1py BiasAdd BiasAddV1
        Complex Conj Real Imag AssignAddVariableOp AssignSubVariableOp AssignAdd AssignSub
        InplaceAdd InplaceSub Igamma Igammac Polygamma NextAfter ComplexAbs Angle Zeta
    """,
    "Elementwise activation": """
        Relu ReluGrad Relu6 Relu6Grad LeakyRelu LeakyReluGrad Elu EluGrad Selu SeluGrad Sigmoid
        SigmoidGrad Tanh TanhGrad Softplus SoftplusGrad Softsign SoftsignGrad _MklSwish
        _MklFusedMish
    """,
    "Elementwise comparison": """
        Equal NotEqual Less LessEqual Greater GreaterEqual ApproximateEqual IsNan IsInf IsFinite
        Select SelectV2
    """,
    "Elementwise logical": """
        LogicalAnd LogicalOr LogicalNot BitwiseAnd BitwiseOr BitwiseXor Invert LeftShift
        RightShift
    """,
    "Elementwise masking": "MatrixBandPart BatchMatrixBandPart",
    "Elementwise fused": "_UnaryOpsComposition",
    "Elementwise quantization": """
        QuantizeV2 Dequantize Requantize FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars
        QuantizeAndDequantizeV2 QuantizeAndDequantizeV3 QuantizeAndDequantizeV4
        FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVarsGradient
        FakeQuantWithMinMaxVarsPerChannel
    """,
    "Reduction/Expansion reduction": """
        Sum Mean Prod Max Min All Any ArgMax ArgMin L2Loss BiasAddGrad EuclideanNorm SegmentSum
        SegmentMean SegmentMax UnsortedSegmentSum UnsortedSegmentMax UnsortedSegmentMin
        UnsortedSegmentProd SparseSegmentSum SparseSegmentMean SparseSegmentSqrtN
        SparseSegmentSumGrad SparseSegmentMeanGrad SegmentSumV2 Bincount DenseBincount
        SparseReduceSum CheckNumerics CheckNumericsV2 SegmentMin SegmentProd HistogramFixedWidth
    """,
    "Reduction/Expansion scan": "Cumsum Cumprod CumulativeLogsumexp",
    "Reduction/Expansion softmax": "Softmax LogSoftmax _MklSoftmax",
    "Reduction/Expansion normalization": """
        FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 FusedBatchNormGrad FusedBatchNormGradV2
        FusedBatchNormGradV3 _FusedBatchNormEx _FusedBatchNormGradEx _MklNativeFusedBatchNorm
        _MklNativeFusedBatchNormV2 _MklNativeFusedBatchNormV3 _MklNativeFusedBatchNormEx
        _MklNativeFusedBatchNormGrad _MklNativeFusedBatchNormGradV2
        _MklNativeFusedBatchNormGradV3 LRN LRNGrad _MklLayerNorm _MklFusedInstanceNorm
        _MklFusedBatchNormEx
    """,
    "Reduction/Expansion pooling": """
        MaxPool MaxPoolV2 MaxPoolGrad MaxPoolGradV2 MaxPoolGradGrad MaxPoolWithArgmax
        MaxPoolGradWithArgmax MaxPool3D MaxPool3DGrad AvgPool AvgPoolGrad AvgPool3D
        AvgPool3DGrad _MklNativeMaxPool _MklNativeMaxPoolGrad _MklNativeMaxPool3D
        _MklNativeMaxPool3DGrad _MklNativeAvgPool _MklNativeAvgPoolGrad _MklNativeAvgPool3D
        _MklNativeAvgPool3DGrad FractionalMaxPool FractionalAvgPool MaxPoolGradGradV2
        FractionalMaxPoolGrad FractionalAvgPoolGrad
    """,
    "Reduction/Expansion resize": """
        ResizeNearestNeighbor ResizeNearestNeighborGrad ResizeBilinear ResizeBilinearGrad
        ResizeBicubic ResizeBicubicGrad ResizeArea CropAndResize ScaleAndTranslate
        ScaleAndTranslateGrad CropAndResizeGradImage CropAndResizeGradBoxes
    """,
    "Reduction/Expansion loss": """
        SparseSoftmaxCrossEntropyWithLogits SoftmaxCrossEntropyWithLogits CTCLoss CTCLossV2
        CTCGreedyDecoder CTCBeamSearchDecoder InTopK InTopKV2
    """,
    "Reduction/Expansion sort": """
        TopK TopKV2 Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 LowerBound UpperBound
        ApproxTopK NonMaxSuppressionV3 NonMaxSuppression NonMaxSuppressionV2 NonMaxSuppressionV4
        NonMaxSuppressionV5 CombinedNonMaxSuppression ListDiff Bucketize NthElement
    """,
    "Reduction/Expansion expansion": "Tile TileGrad BroadcastTo Range LinSpace OneHot RaggedRange",
    "Reduction/Expansion transform": """
        FFT FFT2D FFT3D IFFT IFFT2D IFFT3D RFFT RFFT2D RFFT3D IRFFT IRFFT2D IRFFT3D
    """,
    "DataMovement view": """
        Reshape Squeeze ExpandDims Identity IdentityN StopGradient PreventGradient Bitcast
        EnsureShape PlaceholderWithDefault RefIdentity GuaranteeConst
    """,
    "DataMovement cast": "Cast _HostCast",
    "DataMovement copy": """
        Transpose ConjugateTranspose _MklTranspose _MklConjugateTranspose Concat ConcatV2
        _MklConcat _MklConcatV2 Pack Unpack Split SplitV Slice StridedSlice StridedSliceGrad
        TensorStridedSliceUpdate Reverse ReverseV2 ReverseSequence Roll SpaceToDepth
        DepthToSpace SpaceToBatch SpaceToBatchND BatchToSpace BatchToSpaceND MatrixDiag
        MatrixDiagV2 MatrixDiagV3 MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 Diag DiagPart
        MatrixSetDiag MatrixSetDiagV3 Copy ExtractImagePatches AssignVariableOp Assign
        MirrorPadGrad ParallelConcat _ParallelConcatUpdate InplaceUpdate ExtractVolumePatches
        MatrixSetDiagV2 StridedSliceAssign ResourceStridedSliceAssign _CopyFromGpuToHost
        _CopyFromHostToGpu CopyHost Snapshot DeepCopy
    """,
    "DataMovement padding": "Pad PadV2 MirrorPad",
    "DataMovement gather": """
        Gather GatherV2 GatherNd ResourceGather ResourceGatherNd Where DynamicPartition
        InvertPermutation UnravelIndex
    """,
    "DataMovement scatter": """
        ScatterNd ScatterUpdate ScatterAdd ScatterNdUpdate ScatterNdAdd ResourceScatterUpdate
        ResourceScatterAdd ResourceScatterSub ResourceScatterNdUpdate ResourceScatterNdAdd
        TensorScatterUpdate TensorScatterAdd TensorScatterSub TensorScatterMax DynamicStitch
        ParallelDynamicStitch SparseToDense ScatterSub ScatterMul ScatterNdSub
        ScatterNdNonAliasingAdd ResourceScatterMul ResourceScatterMax ResourceScatterMin
        ResourceScatterNdSub
    """,
    "DataMovement fill": "Fill ZerosLike OnesLike Const HostConst _EagerConst ImmutableConst",
    "DataMovement list": """
        TensorListReserve TensorListSetItem TensorListGetItem TensorListStack
        TensorListFromTensor TensorListPushBack TensorListPopBack EmptyTensorList
        TensorListElementShape TensorListLength TensorListConcatV2 TensorListSplit
        TensorListResize StackV2 StackPushV2 StackPopV2
    """,
    "Random random": """
        RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal RandomGamma
        RandomPoissonV2 RandomShuffle Multinomial ParameterizedTruncatedNormal
        StatelessMultinomial LogUniformCandidateSampler UniformCandidateSampler
        LearnedUnigramCandidateSampler FixedUnigramCandidateSampler AllCandidateSampler
        ComputeAccidentalHits RngSkip RngReadAndSkip NonDeterministicInts StatefulUniform
        StatefulStandardNormalV2 StatefulTruncatedNormal StatefulUniformInt
        StatefulUniformFullInt ThreadUnsafeUnigramCandidateSampler StatefulStandardNormal
        StatelessShuffle SampleDistortedBoundingBoxV2
    """,
    "ControlFlow control": """
        While StatelessWhile _While If StatelessIf _If Case StatelessCase Switch RefSwitch Merge
        RefMerge Enter RefEnter Exit RefExit NextIteration RefNextIteration LoopCond NoOp
        ControlTrigger For Assert _SwitchN
    """,
    "ControlFlow call": """
        PartitionedCall StatefulPartitionedCall SymbolicGradient RemoteCall TPUPartitionedCall
        MapDefun
    """,
    "Communication collective": "CrossReplicaSum AllToAll",
    "Runtime variable": """
        ReadVariableOp VarHandleOp Variable VariableV2 VarIsInitializedOp _ReadVariablesOp
        DestroyResourceOp DisableCopyOnRead _VarHandlesOp DestroyTemporaryVariable
        TemporaryVariable IsVariableInitialized
    """,
    "Runtime transfer": "_Send _Recv _HostSend _HostRecv Send Recv",
    "Runtime argument": """
        _Arg _Retval _DeviceArg _DeviceRetval Placeholder _ArrayToList _ListToArray FakeParam
    """,
    "Runtime query": """
        Shape ShapeN Size Rank VariableShape BroadcastArgs BroadcastGradientArgs ConcatOffset
        TensorArraySizeV3 DataFormatDimMap DataFormatVecPermute DeviceIndex
    """,
    "Runtime executor": "ExecutorState::Process",
    "Runtime host": """
        Print PrintV2 PyFunc EagerPyFunc PyFuncStateless StringFormat AsString
        MergeV2Checkpoints SaveV2 RestoreV2 ShardedFilename Timestamp
    """,
    "Runtime compile": "_XlaCompile",
    "Runtime allocation": "_ScopedAllocator _ScopedAllocatorConcat _ScopedAllocatorSplit Empty",
    "Opaque compiled": """
        XlaLaunch XlaLaunchV2 _XlaRun _XlaMerge XlaClusterOutput XlaCallModule XlaCustomCall
        XlaCustomCallV2
    """,
}

# ONNX, com.microsoft and com.microsoft.nchwc, without the domain. XGrad is found under X.
ONNX: Groups = {
    "MatMul matmul": """
        MatMul Gemm FusedMatMul FusedGemm MatMulInteger MatMulIntegerToFloat
        DynamicQuantizeMatMul QLinearMatMul MatMulNBits FusedMatMulActivation TransposeMatMul
        QGemm GemmFastGelu GemmFloat8 MatMulFpQ4 MatMulBnb4 Einsum SparseToDenseMatMul
        MatMulInteger16 QOrderedMatMul MatMulNBitsMlp MatMulNBitsQkv MoE QMoE
    """,
    "MatMul attention": """
        Attention QAttention MultiHeadAttention GroupQueryAttention PackedAttention
        PackedMultiHeadAttention DecoderAttention SparseAttention DecoderMaskedSelfAttention
        DecoderMaskedMultiHeadAttention LongformerAttention PagedAttention
        DisentangledAttention_TRT QOrderedAttention QOrderedLongformerAttention
        SparsePagedAttention DynamicSparseAttention
    """,
    "MatMul distance": "CDist",
    "MatMul linear-algebra": "Inverse",
    "Convolution convolution": """
        Conv FusedConv NhwcConv NhwcFusedConv ConvInteger QLinearConv DeformConv
        CausalConvWithState
    """,
    "Convolution transposed": "ConvTranspose ConvTransposeWithDynamicPads QLinearConvTranspose",
    "Recurrent recurrent": """
        LSTM GRU RNN DynamicQuantizeLSTM AttnLSTM LinearAttention GRUUnit GatedDeltaNet
    """,
    "Elementwise arithmetic": """
        Add Sub Mul Div Mod Neg Abs Sqrt Reciprocal Pow Exp Log Erf Sin Cos Tan Asin Acos Atan
        Sinh Cosh Asinh Acosh Atanh Ceil Floor Round Sign Max Min Sum Clip BiasAdd QLinearAdd
        QLinearMul BiasSplitGelu ComplexMul ComplexMulConj MulInteger RotaryEmbedding
        GemmaRotaryEmbedding MRotaryEmbedding Affine Scale ImageScaler GatedAdd
    """,
    "Elementwise activation": """
        Relu LeakyRelu ThresholdedRelu PRelu Elu Selu Celu Sigmoid HardSigmoid HardSwish Tanh
        Softplus Softsign Gelu FastGelu BiasGelu QuickGelu Mish Swish Shrink QLinearSigmoid
        QLinearLeakyRelu ParametricSoftplus ScaledTanh ScaledSiLU QOrderedGelu
    """,
    "Elementwise comparison": """
        Equal Less LessOrEqual Greater GreaterOrEqual IsNaN IsInf Where IsAllFinite QLinearWhere
    """,
    "Elementwise logical": "And Or Not Xor BitShift BitwiseAnd BitwiseOr BitwiseXor BitwiseNot",
    "Elementwise masking": "Trilu",
    "Elementwise quantization": """
        QuantizeLinear DequantizeLinear DynamicQuantizeLinear QuantizeBFP DequantizeBFP
        QuantizeWithOrder DequantizeWithOrder
    """,
    "Reduction/Expansion reduction": """
        ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum
        ReduceLogSumExp ReduceSumSquare ReduceSumInteger ArgMax ArgMin Mean Det
        QLinearReduceMean
    """,
    "Reduction/Expansion scan": "CumSum CumProd",
    "Reduction/Expansion softmax": "Softmax LogSoftmax Hardmax BiasSoftmax QLinearSoftmax",
    "Reduction/Expansion normalization": """
        BatchNormalization InstanceNormalization LayerNormalization SimplifiedLayerNormalization
        SkipLayerNormalization SkipSimplifiedLayerNormalization GroupNormalization GroupNorm
        SkipGroupNorm RMSNormalization LRN LpNormalization MeanVarianceNormalization
        EmbedLayerNormalization QEmbedLayerNormalization QOrderedLayerNormalization GatedRMSNorm
    """,
    "Reduction/Expansion pooling": """
        MaxPool AveragePool GlobalMaxPool GlobalAveragePool LpPool GlobalLpPool MaxUnpool
        RoiAlign MaxRoiPool QLinearAveragePool QLinearGlobalAveragePool NhwcMaxPool
        MaxpoolWithMask
    """,
    "Reduction/Expansion resize": "Resize Upsample GridSample AffineGrid CropAndResize",
    "Reduction/Expansion loss": "SoftmaxCrossEntropyLoss NegativeLogLikelihoodLoss",
    "Reduction/Expansion sort": "TopK Unique NonMaxSuppression",
    "Reduction/Expansion expansion": """
        Expand Tile Range OneHot EyeLike RelativePositionBias GatedRelativePositionBias
    """,
    "Reduction/Expansion transform": "DFT STFT Rfft Irfft MelWeightMatrix",
    "DataMovement view": """
        Reshape Squeeze Unsqueeze Flatten Identity Optional OptionalGetElement
        OptionalHasElement ExpandDims
    """,
    "DataMovement cast": "Cast CastLike BitCast",
    "DataMovement copy": """
        Transpose Concat Split Slice DepthToSpace SpaceToDepth ReverseSequence Col2Im
        CenterCropPad QLinearConcat ReorderInput ReorderOutput MemcpyFromHost MemcpyToHost
        TensorScatter UnfoldTensor DynamicSlice Crop RemovePadding RestorePadding
    """,
    "DataMovement padding": "Pad",
    "DataMovement gather": """
        Gather GatherElements GatherND Compress NonZero GatherBlockQuantized TorchEmbedding
        WordConvEmbedding
    """,
    "DataMovement scatter": "Scatter ScatterElements ScatterND",
    "DataMovement fill": """
        Constant ConstantOfShape GivenTensorFill HannWindow HammingWindow BlackmanWindow
    """,
    "DataMovement list": """
        SequenceConstruct SequenceEmpty SequenceInsert SequenceAt SequenceErase SequenceLength
        ConcatFromSequence SplitToSequence
    """,
    "Optimizer update": "Adam Adagrad Momentum",
    "Random random": """
        RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli
        Dropout BiasDropout BitmaskDropout BitmaskBiasDropout
    """,
    "ControlFlow control": "If Loop Scan SequenceMap",
    "ControlFlow generation": "BeamSearch GreedySearch Sampling WhisperBeamSearch",
    "Communication collective": "AllReduce AllGather AllToAll",
    "Runtime query": "Shape Size",
    "Opaque external": "EPContext",
}
