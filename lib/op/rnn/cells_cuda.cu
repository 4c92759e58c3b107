/* cells_cuda.cu - see cells_cuda.cuh. A thread owns one hidden unit of one of the batch: everything of it is
 * read and written by that thread alone. */
#include "op/rnn/cells_cuda.cuh"

/* ---- functions: function.c's table ---- */

__device__ static inline float value(const struct rnn_act &f, float x)
{
    const float a = f.alpha, b = f.beta;

    if (f.clips && !(fabsf(x) < f.clip) && x == x) /* the bits of the bounds tell slope() */
        return x < 0.0f ? f.lo : f.hi;
    switch (f.id) {
    case RNN_SIGMOID: return 1.0f / (1.0f + expf(-x));
    case RNN_TANH: return tanhf(x);
    case RNN_RELU: return x > 0.0f ? x : 0.0f;
    case RNN_LEAKY: return x < 0.0f ? a * x : x;
    case RNN_THRESHOLDED: return x > a ? x : 0.0f;
    case RNN_SCALED_TANH: return a * tanhf(b * x);
    case RNN_HARD: return a * x + b < 0.0f ? 0.0f : a * x + b > 1.0f ? 1.0f : a * x + b;
    case RNN_ELU: return x < 0.0f ? a * expm1f(x) : x;
    case RNN_SOFTSIGN: return x / (1.0f + fabsf(x));
    case RNN_SOFTPLUS: return x > 0.0f ? x + log1pf(expf(-x)) : log1pf(expf(x));
    case RNN_AFFINE: return a * x + b;
    }
    return 0.0f;
}

/* dy / dx, from y. */
__device__ static inline float slope(const struct rnn_act &f, float y)
{
    const float a = f.alpha, b = f.beta;

    if (f.clips && (y <= f.lo || y >= f.hi))
        return 0.0f;
    switch (f.id) {
    case RNN_SIGMOID: return y * (1.0f - y);
    case RNN_TANH: return 1.0f - y * y;
    case RNN_RELU: return y > 0.0f ? 1.0f : 0.0f;
    case RNN_LEAKY: return y <= 0.0f ? a : 1.0f;
    case RNN_THRESHOLDED: return y > 0.0f ? 1.0f : 0.0f;
    case RNN_SCALED_TANH: return b * (a - y * y / a);
    case RNN_HARD: return y > 0.0f && y < 1.0f ? a : 0.0f;
    case RNN_ELU: return y <= 0.0f ? y + a : 1.0f;
    case RNN_SOFTSIGN: return (1.0f - fabsf(y)) * (1.0f - fabsf(y));
    case RNN_SOFTPLUS: return -expm1f(-y);
    case RNN_AFFINE: return a;
    }
    return 0.0f;
}

/* ---- one hidden unit of one of the batch ---- */

struct unit {
    uint32_t b, j;
    size_t at; /* in [B, H] */
    bool live;
};

__device__ static inline struct unit unit_of(const struct rnn_here &s, size_t i)
{
    struct unit u = { (uint32_t)(i / s.hidden), (uint32_t)(i % s.hidden), i, true };

    u.live = s.length == NULL || (s.length[u.b] > 0 && s.t < (size_t)s.length[u.b]);
    return u;
}

/* Gate g of G in part `part`. */
__device__ static inline float *gate(const struct rnn_here &s, const struct unit &u, uint32_t part, uint32_t g,
                                     uint32_t of)
{
    return s.gates[part] + ((size_t)u.b * of + g) * s.hidden + u.j;
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

static int launch(void (*kernel)(struct rnn_here), const struct rnn_here *s, cudaStream_t stream, struct err *err)
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
    EACH_UNIT(k, s) {
        const struct unit u = unit_of(s, k);
        const float *p = s.peephole != NULL ? s.peephole + u.j : NULL, before = s.c_prev[k];
        float *pi = gate(s, u, 0, 0, 4), *po = gate(s, u, 0, 1, 4), *pf = gate(s, u, 0, 2, 4),
              *pg = gate(s, u, 0, 3, 4), c = before, h = s.h_prev[k];

        if (u.live) {
            const float i = value(s.act[0], p != NULL ? *pi + p[0] * before : *pi);
            const float f = s.coupled   ? 1.0f - i
                            : p != NULL ? value(s.act[0], *pf + p[2 * s.hidden] * before)
                                        : value(s.act[0], *pf);
            const float g = value(s.act[1], *pg);
            float o;

            c = f * before + i * g;
            o = value(s.act[0], p != NULL ? *po + p[s.hidden] * c : *po);
            h = o * value(s.act[2], c);
            *pi = i;
            *po = o;
            *pf = f;
            *pg = g;
        }
        s.h[k] = h;
        s.c[k] = c;
        put_y(s, u, h);
    }
}

__global__ void lstm_backward(struct rnn_here s)
{
    EACH_UNIT(k, s) {
        const struct unit u = unit_of(s, k);
        const float *p = s.peephole != NULL ? s.peephole + u.j : NULL;
        float *pi = gate(s, u, 0, 0, 4), *po = gate(s, u, 0, 1, 4), *pf = gate(s, u, 0, 2, 4),
              *pg = gate(s, u, 0, 3, 4), d_i = 0, d_o = 0, d_f = 0, d_g = 0;

        if (u.live) {
            const float i = *pi, o = *po, f = *pf, g = *pg, before = s.c_prev[k], dh = take_dh(s, u);
            const float hc = value(s.act[2], s.c[k]);
            float d;

            d_o = dh * hc * slope(s.act[0], o);
            d = s.dc[k] + dh * o * slope(s.act[2], hc) + (p != NULL ? d_o * p[s.hidden] : 0.0f);
            d_i = d * (s.coupled ? g - before : g) * slope(s.act[0], i);
            d_f = s.coupled ? 0.0f : d * before * slope(s.act[0], f);
            d_g = d * i * slope(s.act[1], g);
            s.dc[k] = d * f + (p != NULL ? d_i * p[0] + d_f * p[2 * s.hidden] : 0.0f);
            s.dh[k] = 0.0f;
        }
        *pi = d_i;
        *po = d_o;
        *pf = d_f;
        *pg = d_g;
    }
}

/* ---- RNN ---- */

__global__ void plain_forward(struct rnn_here s)
{
    EACH_UNIT(k, s) {
        const struct unit u = unit_of(s, k);
        const float h = u.live ? value(s.act[0], s.gates[0][k]) : s.h_prev[k];

        s.h[k] = h;
        put_y(s, u, h);
    }
}

__global__ void plain_backward(struct rnn_here s)
{
    EACH_UNIT(k, s) {
        const struct unit u = unit_of(s, k);

        s.gates[0][k] = u.live ? take_dh(s, u) * slope(s.act[0], s.h[k]) : 0.0f;
        if (u.live)
            s.dh[k] = 0.0f;
    }
}

/* ---- GRU: gates z, r; n ---- */

__global__ void gru_gates(struct rnn_here s)
{
    EACH_UNIT(k, s) {
        const struct unit u = unit_of(s, k);
        float *z = gate(s, u, 0, 0, 2), *r = gate(s, u, 0, 1, 2);

        *z = value(s.act[0], *z);
        *r = value(s.act[0], *r);
        if (!s.reset_after)
            s.e[k] = *r * s.h_prev[k];
    }
}

__global__ void gru_forward(struct rnn_here s)
{
    EACH_UNIT(k, s) {
        const struct unit u = unit_of(s, k);
        float h = s.h_prev[k];

        if (u.live) {
            const float z = *gate(s, u, 0, 0, 2), in = s.gates[1][k];
            const float n = value(s.act[1], s.reset_after ? in + *gate(s, u, 0, 1, 2) * s.e[k] : in);

            s.gates[1][k] = n;
            h = (1.0f - z) * n + z * h;
        }
        s.h[k] = h;
        put_y(s, u, h);
    }
}

__global__ void gru_backward(struct rnn_here s)
{
    EACH_UNIT(k, s) {
        const struct unit u = unit_of(s, k);
        float *pz = gate(s, u, 0, 0, 2), *pr = gate(s, u, 0, 1, 2);

        if (!u.live) {
            *pz = *pr = s.gates[1][k] = 0.0f;
            if (s.reset_after)
                s.e[k] = 0.0f;
            continue;
        }
        const float z = *pz, r = *pr, n = s.gates[1][k], d = take_dh(s, u);
        const float dn = d * (1.0f - z) * slope(s.act[1], n);

        *pz = d * (s.h_prev[k] - n) * slope(s.act[0], z);
        s.gates[1][k] = dn;
        s.dh[k] = d * z;
        if (s.reset_after) {
            *pr = dn * s.e[k] * slope(s.act[0], r);
            s.e[k] = dn * r;
        }
    }
}

__global__ void gru_reset(struct rnn_here s)
{
    EACH_UNIT(k, s) {
        const struct unit u = unit_of(s, k);
        float *pr = gate(s, u, 0, 1, 2);

        if (!u.live)
            continue;
        const float r = *pr, de = s.spare[k];

        *pr = de * s.h_prev[k] * slope(s.act[0], r);
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
