/* plugin.cu - fills in the plugin's table from the .cu files of all folders. */
#include <string.h>

#include <cublasLt.h>
#include <cudnn.h>

#include "code/code_cuda.cuh"
#include "code/power_sgd_cuda.cuh"
#include "code/top_k_cuda.cuh"
#include "comm/nccl.cuh"
#include "comm/tree_add.cuh"
#include "cuda/math.cuh"
#include "device/device_cuda.cuh"
#include "device/nvml.cuh"
#include "optim/optim_cuda.cuh"

extern "C" {
#include "op/op.h"
}

/* The kernels of every row, in the order of op_list.h; a row without kernels is a link error. */
#define OP(row_) extern "C" const struct op_kernels row_##_cuda;
#include "op/op_list.h"
#undef OP

#define OP(row_) &row_##_cuda,
static const struct op_kernels *const rows[] = {
#include "op/op_list.h"
};
#undef OP

static const struct op_kernels *kernels_of(uint32_t row)
{
    return row < sizeof(rows) / sizeof(rows[0]) ? rows[row] : NULL;
}

static void versions(struct cuda_versions *out)
{
    memset(out, 0, sizeof(*out));
    cuda_versions(out);
    out->cublaslt = (int)cublasLtGetVersion();
    out->cudnn = (int)cudnnGetVersion();
    out->nccl = comm_nccl_version();
}

/* Later GPUs are supported too, because the Makefile adds PTX code. */
static constexpr uint32_t least_capability()
{
#ifdef CUDA_EMULATED
    constexpr uint32_t built_for[] = { 800 };
#else
    constexpr uint32_t built_for[] = { __CUDA_ARCH_LIST__ };
#endif
    uint32_t least = built_for[0];

    for (uint32_t arch : built_for)
        least = arch < least ? arch : least;
    return least / 10;
}

static const struct cuda_math math_table = {
    .add = cuda_math_add,
    .scale = cuda_math_scale,
    .add_tree = comm_tree_add,
    .code_round = code_cuda_round,
    .code_join = code_cuda_join,
    .code_sum = code_cuda_sum,
    .code_read = code_cuda_read,
    .residual_add = code_cuda_residual_add,
    .top_k_encode = code_cuda_top_k_encode,
    .top_k_sum = code_cuda_top_k_sum,
    .power_sgd_begin = code_cuda_power_sgd_begin,
    .power_sgd_left = code_cuda_power_sgd_left,
    .power_sgd_orthogonalize = code_cuda_power_sgd_orthogonalize,
    .power_sgd_right = code_cuda_power_sgd_right,
    .power_sgd_decode = code_cuda_power_sgd_decode,
    .power_sgd_subtract = code_cuda_power_sgd_subtract,
    .scan = cuda_scan,
    .optim_open = cuda_optim_open,
    .optim_close = cuda_optim_close,
    .optim_scan = cuda_optim_scan,
    .optim_update = cuda_optim_update,
};

extern "C" __attribute__((visibility("default"))) const struct cuda_api trainerd_cuda_plugin = {
    .abi = CUDA_ABI,
    .version = TRAINERD_VERSION,
    .least_capability = least_capability(),
    .versions = versions,
    .gpus = cuda_gpus,
    .enter = cuda_enter,
    .read = nvml_read,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .free_bytes = cuda_free_bytes,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .stream_open = cuda_stream_open,
    .stream_close = cuda_stream_close,
    .event_open = cuda_event_open,
    .event_close = cuda_event_close,
    .record = cuda_record,
    .wait = cuda_wait,
    .done = cuda_done,
    .elapsed_ms = cuda_elapsed_ms,
    .copy = cuda_copy,
    .fill = cuda_fill,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .launch = cuda_launch,
    .graph_close = cuda_graph_close,
    .op = kernels_of,
    .math = &math_table,
    .comm_id = comm_nccl_id,
    .comm_open = comm_nccl_open,
    .comm_state = comm_nccl_state,
    .comm_all_reduce = comm_nccl_all_reduce,
    .comm_exchange = comm_nccl_exchange,
    .comm_abort = comm_nccl_abort,
    .comm_close = comm_nccl_close,
};
