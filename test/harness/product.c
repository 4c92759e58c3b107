#include "harness/product.h"

#include <string.h>

#include "op/dnn_api.h"

static const int roles[3] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST };
static const dnnl_query_t layouts[3] = { dnnl_query_src_md, dnnl_query_weights_md,
                                         dnnl_query_dst_md };

void product_close(struct product *p)
{
    for (int i = 0; i < 3; i++)
        dnnl_memory_destroy(p->memory[i]);
    dnnl_primitive_destroy(p->run);
    dnnl_stream_destroy(p->stream);
    dnnl_engine_destroy(p->engine);
}

bool product_open(struct product *p, enum tensor_dtype type, int64_t side)
{
    struct dnn_layout open = { .n = 2,
                               .dim = { side, side },
                               .type = type == TENSOR_BF16 ? dnnl_bf16 : dnnl_f32,
                               .is_open = true };
    struct dnn_op op = { .kind = DNN_MATMUL };
    dnnl_primitive_desc_t primitive;
    dnn_md any;
    bool fine;

    memset(p, 0, sizeof(*p));
    if (dnnl_engine_create(&p->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags) != dnnl_success ||
        dnn_md_new(&open, &any) != dnnl_success)
        return false;
    fine =
        dnn_pd_new(&op, any, any, NULL, any, p->engine, NULL, NULL, 0, &primitive) == dnnl_success;
    dnn_md_free(any);
    if (!fine)
        return false;
    fine = dnnl_primitive_create(&p->run, primitive) == dnnl_success;
    for (int i = 0; i < 3 && fine; i++) {
        dnn_md md = dnnl_primitive_desc_query_md(primitive, layouts[i], 0);
        void *data;

        fine = dnnl_memory_create(&p->memory[i], md, p->engine, DNNL_MEMORY_ALLOCATE) ==
                   dnnl_success &&
               dnnl_memory_get_data_handle(p->memory[i], &data) == dnnl_success;
        if (fine)
            memset(data, 0, dnnl_memory_desc_get_size(md));
    }
    dnnl_primitive_desc_destroy(primitive);
    return fine;
}

bool product_run(struct product *p)
{
    dnnl_exec_arg_t args[3];

    for (int i = 0; i < 3; i++)
        args[i] = (dnnl_exec_arg_t){ roles[i], p->memory[i] };
    return dnnl_primitive_execute(p->run, p->stream, 3, args) == dnnl_success &&
           dnnl_stream_wait(p->stream) == dnnl_success;
}
