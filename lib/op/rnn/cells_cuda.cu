/* cells_cuda.cu - see cells_cuda.cuh. A thread owns one hidden unit of one row of the batch; no other thread
 * reads or writes its values. */
#include "op/rnn/cells_cuda.cuh"

#include "op/rnn/rnn_formula.h"

/* ---- functions ---- */

__device__ static inline float value(const struct rnn_act &f, float x)
{
    if (f.clips && !(fabsf(x) < f.clip) && x == x) /* slope() recognises the bits of the bounds */
        return x < 0.0f ? f.lo : f.hi;
#define VALUE(enumerator_, id_) case enumerator_: return rnn_##id_(x, f.alpha, f.beta);
    switch (f.id) {
        RNN_EACH_FUNCTION(VALUE)
    }
    return 0.0f;
}

/* dy / dx, from y. */
__device__ static inline float slope(const struct rnn_act &f, float y)
{
    if (f.clips && (y <= f.lo || y >= f.hi))
        return 0.0f;
#define SLOPE(enumerator_, id_) case enumerator_: return rnn_##id_##_slope(y, f.alpha, f.beta);
    switch (f.id) {
        RNN_EACH_FUNCTION(SLOPE)
    }
    return 0.0f;
}

/* ---- one hidden unit of one row of the batch ---- */

struct unit {
    uint32_t b, j;
    size_t at; /* in [B, H] */
    bool live;
};

__device__ static inline struct unit unit_of(const struct rnn_here &s, size_t i)
{
    struct unit u = { (uint32_t)(i / s.hidden), (uint32_t)(i % s.hidden), i, true };

    u.live = s.length == NULL || (s.length[u.b] > 0 && s.at.t < (size_t)s.length[u.b]);
    return u;
}

/* Gate g of G in part `part`. */
__device__ static inline float *gate(const struct rnn_here &s, const struct unit &u, uint32_t part,
                                     uint32_t g, uint32_t of)
{
    return s.at.gates[part] + ((size_t)u.b * of + g) * s.hidden + u.j;
}

__device__ static inline void put_y(const struct rnn_here &s, const struct unit &u, float h)
{
    if (s.y == NULL)
        return;
    if (s.length != NULL && (s.length[u.b] < 0 || (size_t)s.length[u.b] > s.steps))
        h = nanf("");
    else if (!u.live)
        h = 0.0f;
    s.y[u.b * s.y_step + u.j] = h;
}

/* The gradient of h of a live unit. */
__device__ static inline float take_dh(const struct rnn_here &s, const struct unit &u)
{
    return s.dh[u.at] + (s.y != NULL ? s.y[u.b * s.y_step + u.j] : 0.0f);
}

#define EACH_UNIT(i_, s_)                                                                              \
    for (size_t i_ = (size_t)blockIdx.x * blockDim.x + threadIdx.x, n_ = (size_t)(s_).batch * (s_).hidden; \
         i_ < n_; i_ += (size_t)gridDim.x * blockDim.x)

static int launch(void (*kernel)(struct rnn_here), const struct rnn_here *s, cudaStream_t stream,
                  struct err *err)
{
    const size_t n = (size_t)s->batch * s->hidden;

    if (n == 0)
        return 0;
    CUDA_LAUNCH(kernel, op_blocks(n, OP_THREADS), OP_THREADS, 0, stream, *s);
    return cuda_launched(err);
}

/* ---- LSTM: gates i, o, f, g ---- */

__global__ void lstm_forward(struct rnn_here s)
{
    EACH_UNIT(k, s)
    {
        const struct unit u = unit_of(s, k);
        const float *p = s.peephole != NULL ? s.peephole + u.j : NULL, before = s.at.c_prev[k];
        float *pi = gate(s, u, 0, 0, 4), *po = gate(s, u, 0, 1, 4), *pf = gate(s, u, 0, 2, 4),
              *pg = gate(s, u, 0, 3, 4), c = before, h = s.at.h_prev[k];

        if (u.live) {
            const float i = value(s.act[0], p != NULL ? *pi + p[0] * before : *pi);
            const float f = s.coupled   ? 1.0f - i
                            : p != NULL ? value(s.act[0], *pf + p[2 * s.hidden] * before)
                                        : value(s.act[0], *pf);
            const float g = value(s.act[1], *pg);
            float o;

            c = rnn_lstm_c(i, f, g, before);
            o = value(s.act[0], p != NULL ? *po + p[s.hidden] * c : *po);
            h = o * value(s.act[2], c);
            *pi = i;
            *po = o;
            *pf = f;
            *pg = g;
        }
        s.at.h[k] = h;
        s.at.c[k] = c;
        put_y(s, u, h);
    }
}

__global__ void lstm_backward(struct rnn_here s)
{
    EACH_UNIT(k, s)
    {
        const struct unit u = unit_of(s, k);
        const float *p = s.peephole != NULL ? s.peephole + u.j : NULL;
        float *pi = gate(s, u, 0, 0, 4), *po = gate(s, u, 0, 1, 4), *pf = gate(s, u, 0, 2, 4),
              *pg = gate(s, u, 0, 3, 4);
        struct rnn_gates d = { 0, 0, 0, 0 };

        if (u.live) {
            const struct rnn_gates v = { *pi, *po, *pf, *pg };
            const struct rnn_gates slopes = { slope(s.act[0], v.i), slope(s.act[0], v.o), slope(s.act[0], v.f),
                                              slope(s.act[1], v.g) };
            const struct rnn_gates peephole = { p != NULL ? p[0] : 0, p != NULL ? p[s.hidden] : 0,
                                                p != NULL ? p[2 * s.hidden] : 0, 0 };
            const float hc = value(s.act[2], s.at.c[k]);

            d = rnn_lstm_back(&v, &slopes, p != NULL ? &peephole : NULL, s.coupled, hc,
                              slope(s.act[2], hc), s.at.c_prev[k], take_dh(s, u), &s.dc[k]);
            s.dh[k] = 0.0f;
        }
        *pi = d.i;
        *po = d.o;
        *pf = d.f;
        *pg = d.g;
    }
}

/* ---- RNN ---- */

__global__ void plain_forward(struct rnn_here s)
{
    EACH_UNIT(k, s)
    {
        const struct unit u = unit_of(s, k);
        const float h = u.live ? value(s.act[0], s.at.gates[0][k]) : s.at.h_prev[k];

        s.at.h[k] = h;
        put_y(s, u, h);
    }
}

__global__ void plain_backward(struct rnn_here s)
{
    EACH_UNIT(k, s)
    {
        const struct unit u = unit_of(s, k);

        s.at.gates[0][k] = u.live ? take_dh(s, u) * slope(s.act[0], s.at.h[k]) : 0.0f;
        if (u.live)
            s.dh[k] = 0.0f;
    }
}

/* ---- GRU: gates z, r; n ---- */

__global__ void gru_gates(struct rnn_here s)
{
    EACH_UNIT(k, s)
    {
        const struct unit u = unit_of(s, k);
        float *z = gate(s, u, 0, 0, 2), *r = gate(s, u, 0, 1, 2);

        *z = value(s.act[0], *z);
        *r = value(s.act[0], *r);
        if (!s.reset_after)
            s.at.e[k] = *r * s.at.h_prev[k];
    }
}

__global__ void gru_forward(struct rnn_here s)
{
    EACH_UNIT(k, s)
    {
        const struct unit u = unit_of(s, k);
        float h = s.at.h_prev[k];

        if (u.live) {
            const float z = *gate(s, u, 0, 0, 2), in = s.at.gates[1][k];
            const float n =
                value(s.act[1], s.reset_after ? in + *gate(s, u, 0, 1, 2) * s.at.e[k] : in);

            s.at.gates[1][k] = n;
            h = rnn_gru_h(z, n, h);
        }
        s.at.h[k] = h;
        put_y(s, u, h);
    }
}

__global__ void gru_backward(struct rnn_here s)
{
    EACH_UNIT(k, s)
    {
        const struct unit u = unit_of(s, k);
        float *pz = gate(s, u, 0, 0, 2), *pr = gate(s, u, 0, 1, 2);

        if (!u.live) {
            *pz = *pr = s.at.gates[1][k] = 0.0f;
            if (s.reset_after)
                s.at.e[k] = 0.0f;
            continue;
        }
        const float z = *pz, r = *pr, n = s.at.gates[1][k], d = take_dh(s, u);
        const float dn = rnn_gru_dn(d, z, slope(s.act[1], n));

        *pz = rnn_gru_dz(d, s.at.h_prev[k], n, slope(s.act[0], z));
        s.at.gates[1][k] = dn;
        s.dh[k] = d * z;
        if (s.reset_after) {
            *pr = dn * s.at.e[k] * slope(s.act[0], r);
            s.at.e[k] = dn * r;
        }
    }
}

__global__ void gru_reset(struct rnn_here s)
{
    EACH_UNIT(k, s)
    {
        const struct unit u = unit_of(s, k);
        float *pr = gate(s, u, 0, 1, 2);

        if (!u.live)
            continue;
        const float r = *pr, de = s.spare[k];

        *pr = de * s.at.h_prev[k] * slope(s.act[0], r);
        s.dh[k] += de * r;
    }
}

#define LAUNCH(name_)                                                                             \
    int rnn_##name_(const struct rnn_here *s, cudaStream_t stream, struct err *err)                \
    {                                                                                              \
        return launch(name_, s, stream, err);                                                      \
    }
LAUNCH(lstm_forward)
LAUNCH(lstm_backward)
LAUNCH(plain_forward)
LAUNCH(plain_backward)
LAUNCH(gru_gates)
LAUNCH(gru_forward)
LAUNCH(gru_backward)
LAUNCH(gru_reset)
