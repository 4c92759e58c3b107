/* grpc.c - the completion queue, and the thread that forwards its tags.
 *
 * The thread only appends each tag to a list and wakes the loop, which runs the tags in order. It
 * must never do other work, because gRPC answers pings only on a thread that waits on the queue. */
#include "rdzv/rdzv_priv.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log_sink.h"
#include "base/memory_room.h"
#include "base/text.h"
#include "base/thread.h"
#include "loop/loop.h"

enum {
    CHANNEL_ARGS = 16,
    GRPC_THREADS = 8, /* those that gRPC starts at once, the thread of the queue, and a reserve */
    ROOM_BYTES = 64 << 20, /* for the stacks of these threads and of those that gRPC starts later */
    SITES = 64, /* lines of gRPC's source that report errors */
};

/* gRPC is not instrumented: tells the thread sanitizer that a tag carries what was written
 * before. */
#if defined(__SANITIZE_THREAD__)
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
#define TAG_LEAVES(t_) __tsan_release(t_)
#define TAG_RETURNS(t_) __tsan_acquire(t_)
#else
#define TAG_LEAVES(t_) ((void)(t_))
#define TAG_RETURNS(t_) ((void)(t_))
#endif

struct rdzv_hub {
    struct loop *loop;
    grpc_completion_queue *queue;
    pthread_t thread;
    uint32_t n_out; /* tags that gRPC has and that were not run yet; loop thread */

    pthread_mutex_t lock; /* protects the fields below */
    pthread_cond_t came;
    struct rdzv_tag *first, **last;
    bool posted; /* run_posted() is queued in the loop */
};

/* ---- the queue ---- */

/* Runs the tags in the list. Returns false if it was empty. */
static bool run_tags(struct rdzv_hub *h)
{
    struct rdzv_tag *t;

    pthread_mutex_lock(&h->lock);
    t = h->first;
    h->first = NULL;
    h->last = &h->first;
    pthread_mutex_unlock(&h->lock);
    if (t == NULL)
        return false;
    while (t != NULL) {
        struct rdzv_tag *next = t->next; /* fn may free the record that contains the tag */

        h->n_out--;
        t->fn(t->arg, t->ok);
        t = next;
    }
    return true;
}

static void run_posted(void *arg)
{
    struct rdzv_hub *h = arg;

    pthread_mutex_lock(&h->lock);
    h->posted = false;
    pthread_mutex_unlock(&h->lock);
    (void)run_tags(h); /* the list is empty if the pump ran first */
}

static void forward(struct rdzv_hub *h, struct rdzv_tag *t, bool ok)
{
    bool post;

    TAG_RETURNS(t);
    t->ok = ok;
    t->next = NULL;
    pthread_mutex_lock(&h->lock);
    *h->last = t;
    h->last = &t->next;
    post = !h->posted;
    h->posted = true;
    pthread_cond_signal(&h->came);
    pthread_mutex_unlock(&h->lock);
    if (post)
        loop_post(h->loop, run_posted, h);
}

static void *wait_on_queue(void *arg)
{
    struct rdzv_hub *h = arg;

    for (;;) {
        grpc_event e =
            grpc_completion_queue_next(h->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);

        if (e.type == GRPC_QUEUE_SHUTDOWN)
            return NULL;
        forward(h, e.tag, e.success != 0);
    }
}

/* ---- the log of gRPC ---- */

/* GRPC_VERBOSITY enables gRPC's own log. Without it, lines of level ERROR are passed to the daemon, because not all of these
 * errors are reported as statuses: of each line of gRPC's source the first four, then the 16th, 64th, 256th ...
 *
 * A failed assertion of gRPC is a line of level ERROR, after which the same thread calls abort(). So each thread keeps its
 * newest ERROR line for the handler of SIGABRT. */
static _Thread_local char last_error[600];
static struct sigaction earlier_action; /* of SIGABRT */
static char settings[400]; /* "; environment: GRPC_POLL_STRATEGY=epollex"; "": no variable is set */

static void (*_Atomic on_error_line)(const char *line);
static pthread_mutex_t sites_lock = PTHREAD_MUTEX_INITIALIZER;
static struct site {
    const char *file; /* static text of gRPC; NULL: unused */
    int line;
    uint32_t n;
} sites[SITES];

void rdzv_on_grpc_error(void (*fn)(const char *line))
{
    atomic_store(&on_error_line, fn);
}

/* Counts a line of gRPC's source. If the table is full, the last site counts all others. */
static uint32_t count_site(const char *file, int line)
{
    size_t i = 0;
    uint32_t n;

    pthread_mutex_lock(&sites_lock);
    while (i + 1 < SITES && sites[i].file != NULL &&
           (strcmp(sites[i].file, file) != 0 || sites[i].line != line))
        i++;
    if (sites[i].file == NULL)
        sites[i] = (struct site){ file, line, 0 };
    n = ++sites[i].n;
    pthread_mutex_unlock(&sites_lock);
    return n;
}

static void keep_error(gpr_log_func_args *args)
{
    void (*fn)(const char *line) = atomic_load(&on_error_line);
    char text[sizeof(last_error) + 32];
    uint32_t n;

    if (args->severity != GPR_LOG_SEVERITY_ERROR)
        return;
    snprintf(last_error, sizeof(last_error), "%s:%d: %.400s", args->file, args->line,
             args->message);
    n = count_site(args->file, args->line);
    if (fn == NULL || (n > 4 && ((n & (n - 1)) != 0 || __builtin_ctz(n) % 2 != 0)))
        return;
    snprintf(text, sizeof(text), "%s (%" PRIu32 " so far)", last_error, n);
    fn(n > 4 ? text : last_error);
}

/* SIGABRT: when this handler returns, the earlier action follows. */
static void write_last_error(int signum, siginfo_t *info, void *context)
{
    const char *const parts[] = { log_sink_prefix(LOG_ERROR), "gRPC ended the process: ",
                                  last_error, settings };

    if (last_error[0] != '\0')
        log_sink_write_final_parts(parts, COUNT_OF(parts));
    if ((earlier_action.sa_flags & SA_SIGINFO) != 0)
        earlier_action.sa_sigaction(signum, info, context);
}

/* Lists the variables of the environment that gRPC reads. */
static void list_settings(void)
{
    size_t n = 0;

    for (size_t i = 0; environ[i] != NULL; i++)
        if (text_starts(environ[i], "GRPC_") && !text_starts(environ[i], "GRPC_DNS_RESOLVER=") &&
            n + strlen(environ[i]) + 20 < sizeof(settings))
            n += (size_t)snprintf(settings + n, sizeof(settings) - n, "%s%s",
                                  n == 0 ? "; environment: " : ", ", environ[i]);
}

static void keep_last_words(void)
{
    struct sigaction now, action = { .sa_sigaction = write_last_error, .sa_flags = SA_SIGINFO };

    list_settings();
    /* sigaction() fails only for an invalid signal */
    if (sigaction(SIGABRT, NULL, &now) == 0 && now.sa_sigaction != write_last_error) {
        earlier_action = now;
        (void)sigaction(SIGABRT, &action, NULL);
    }
    gpr_set_log_function(keep_error);
}

/* gRPC does not notice that one of its threads did not start: then calls, and its shutdown, wait for that
 * thread for ever. So the limits of memory and threads are tested first. */
int rdzv_grpc_init(struct err *err)
{
    int rc = memory_room_check(ROOM_BYTES, "gRPC", err);

    if (rc == 0)
        rc = thread_check_room(GRPC_THREADS, "gRPC", err);
    if (rc < 0)
        return rc;
    if (getenv("GRPC_VERBOSITY") == NULL)
        keep_last_words();
    grpc_init();
    return 0;
}

/* ---- opening and closing the queue ---- */

/* Closes a queue on which no thread waits. */
static void close_queue(grpc_completion_queue *queue)
{
    gpr_timespec forever = gpr_inf_future(GPR_CLOCK_MONOTONIC);

    grpc_completion_queue_shutdown(queue);
    while (grpc_completion_queue_next(queue, forever, NULL).type != GRPC_QUEUE_SHUTDOWN)
        continue;
    grpc_completion_queue_destroy(queue);
    grpc_shutdown();
}

int rdzv_hub_open(struct loop *loop, struct rdzv_hub **out, struct err *err)
{
    struct rdzv_hub *h = calloc(1, sizeof(*h));
    pthread_condattr_t monotonic;
    int rc;

    if (h == NULL)
        return err_set(err, ERR_NOMEM, "gRPC: out of memory");
    rc = rdzv_grpc_init(err);
    if (rc < 0) {
        free(h);
        return rc;
    }
    h->loop = loop;
    h->last = &h->first;
    CHECK(pthread_mutex_init(&h->lock, NULL) == 0);
    CHECK(pthread_condattr_init(&monotonic) == 0);
    CHECK(pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC) == 0);
    CHECK(pthread_cond_init(&h->came, &monotonic) == 0);
    pthread_condattr_destroy(&monotonic);
    h->queue = grpc_completion_queue_create_for_next(NULL);
    rc = thread_start(&h->thread, "receives gRPC events", wait_on_queue, h, err);
    if (rc < 0) {
        close_queue(h->queue);
        pthread_cond_destroy(&h->came);
        pthread_mutex_destroy(&h->lock);
        free(h);
        return rc;
    }
    *out = h;
    return 0;
}

grpc_completion_queue *rdzv_hub_queue(struct rdzv_hub *h)
{
    return h->queue;
}

void *rdzv_hub_arm(struct rdzv_hub *h, struct rdzv_tag *t)
{
    h->n_out++;
    TAG_LEAVES(t);
    return t;
}

bool rdzv_hub_pump(struct rdzv_hub *h, bool (*done)(void *arg), void *arg, uint64_t wait_ms)
{
    struct timespec until = clock_after_ms(wait_ms);

    while (!done(arg)) {
        int rc = 0;

        if (run_tags(h))
            continue;
        pthread_mutex_lock(&h->lock);
        while (h->first == NULL && rc == 0)
            rc = pthread_cond_timedwait(&h->came, &h->lock, &until);
        pthread_mutex_unlock(&h->lock);
        if (rc != 0)
            return done(arg);
    }
    return true;
}

bool rdzv_hub_is_idle(void *hub)
{
    return ((struct rdzv_hub *)hub)->n_out == 0;
}

static void free_hub(void *arg)
{
    struct rdzv_hub *h = arg;

    pthread_cond_destroy(&h->came);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

void rdzv_hub_close(struct rdzv_hub *h)
{
    if (h == NULL)
        return;
    CHECK(h->n_out == 0);
    grpc_completion_queue_shutdown(h->queue);
    pthread_join(h->thread, NULL);
    CHECK(h->first == NULL);
    grpc_completion_queue_destroy(h->queue);
    grpc_shutdown();
    loop_post(h->loop, free_hub, h); /* after a run_posted() that may be queued */
}

/* ---- messages ---- */

grpc_slice rdzv_pack(const ProtobufCMessage *m)
{
    grpc_slice s = grpc_slice_malloc(protobuf_c_message_get_packed_size(m));

    protobuf_c_message_pack(m, GRPC_SLICE_START_PTR(s));
    return s;
}

grpc_slice rdzv_bytes(grpc_byte_buffer *b)
{
    grpc_byte_buffer_reader reader;
    grpc_slice all;

    if (b == NULL || !grpc_byte_buffer_reader_init(&reader, b))
        return grpc_empty_slice();
    all = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    return all;
}

/* ---- channels ---- */

grpc_arg rdzv_arg(const char *key, int value)
{
    return (grpc_arg){ .type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value };
}

/* The arguments of both kinds of channels. */
static grpc_channel_args channel_args(grpc_arg *all, const grpc_arg *more, size_t n_more)
{
    const grpc_arg common[] = {
        rdzv_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, WIRE_BYTES_MAX),
        rdzv_arg(GRPC_ARG_ENABLE_RETRIES, 0),
        rdzv_arg(GRPC_ARG_ENABLE_CHANNELZ, 0),
    };
    size_t n = COUNT_OF(common);

    CHECK(n + n_more <= CHANNEL_ARGS);
    memcpy(all, common, sizeof(common));
    if (n_more > 0)
        memcpy(all + n, more, n_more * sizeof(*more));
    return (grpc_channel_args){ .num_args = n + n_more, .args = all };
}

bool rdzv_is_address(const char *s)
{
    const char *colon = strrchr(s, ':');
    uint64_t port;

    return colon != NULL && colon != s && strchr(s, '/') == NULL &&
           text_u64(colon + 1, UINT16_MAX, &port);
}

const char *rdzv_host(const char *address, char out[RDZV_HOST_BYTES])
{
    const char *colon = strrchr(address, ':');
    size_t n = colon != NULL ? (size_t)(colon - address) : strlen(address);

    if (n >= 2 && address[0] == '[' && address[n - 1] == ']')
        snprintf(out, RDZV_HOST_BYTES, "%.*s", (int)n - 2, address + 1);
    else
        snprintf(out, RDZV_HOST_BYTES, "%.*s", (int)n, address);
    return out;
}

static grpc_channel_credentials *credentials(struct tls *tls)
{
    struct tls_texts t;
    grpc_ssl_pem_key_cert_pair own;
    grpc_channel_credentials *out;

    if (tls == NULL)
        return grpc_insecure_credentials_create();
    CHECK(tls_texts_init(tls, &t, NULL) == 0); /* fails only without memory, as gRPC does */
    own = (grpc_ssl_pem_key_cert_pair){ .private_key = t.key, .cert_chain = t.certificate };
    out = grpc_ssl_credentials_create_ex(t.authority, &own, NULL, NULL); /* copies the texts */
    tls_texts_fini(&t);
    return out;
}

grpc_channel *rdzv_channel(const char *address, struct tls *tls)
{
    const char *common = tls != NULL ? tls_common_host(tls) : NULL;
    const grpc_arg own[] = {
        rdzv_arg(GRPC_ARG_KEEPALIVE_TIME_MS, 10000),
        rdzv_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10000),
        rdzv_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        /* else the channel inherits the backoff of an earlier one */
        rdzv_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        rdzv_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        rdzv_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        { .type = GRPC_ARG_STRING, .key = (char *)GRPC_SSL_TARGET_NAME_OVERRIDE_ARG, .value.string = (char *)common },
    };
    grpc_arg all[CHANNEL_ARGS];
    grpc_channel_args args = channel_args(all, own, COUNT_OF(own) - (common == NULL));
    grpc_channel_credentials *plain = credentials(tls);
    char target[400];
    grpc_channel *channel;

    snprintf(target, sizeof(target), "dns:///%s", address);
    channel = grpc_channel_create(target, plain, &args);
    CHECK(channel != NULL);
    grpc_channel_credentials_release(plain);
    return channel;
}

grpc_channel *rdzv_channel_on(int fd)
{
    grpc_arg all[CHANNEL_ARGS];
    grpc_channel_args args = channel_args(all, NULL, 0);
    grpc_channel_credentials *plain = grpc_insecure_credentials_create();
    grpc_channel *channel = grpc_channel_create_from_fd("link", fd, plain, &args);

    CHECK(channel != NULL);
    grpc_channel_credentials_release(plain);
    return channel;
}

int rdzv_check_token(const char *token, struct err *err)
{
    grpc_slice s = grpc_slice_from_static_string(token);

    if (!grpc_header_nonbin_value_is_legal(s) || strlen(token) > 1024)
        return err_set(err, ERR_INPUT,
                       "the token: expected at most 1024 printable ASCII characters, "
                       "found other characters");
    return 0;
}

void rdzv_bearer(const char *token, grpc_metadata *out)
{
    static const char scheme[] = "Bearer ";
    size_t n = strlen(token);

    out->key = grpc_slice_from_static_string("authorization");
    out->value = grpc_slice_malloc(sizeof(scheme) - 1 + n);
    memcpy(GRPC_SLICE_START_PTR(out->value), scheme, sizeof(scheme) - 1);
    memcpy(GRPC_SLICE_START_PTR(out->value) + sizeof(scheme) - 1, token, n);
}

/* gRPC wraps the cause: "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1:
 * Failed to connect to remote host: Connection refused". */
void rdzv_status_text(char *out, size_t n, int code, const void *details, size_t n_details)
{
    static const char connect[] = "Failed to connect to remote host: ";
    static const char *const prefixes[] = { "failed to connect to all addresses; last error: ",
                                            "UNKNOWN: ", "UNAVAILABLE: ", "INTERNAL: " };
    char text[1024];
    const char *cause = text, *at;

    wire_text(text, sizeof(text), details, n_details);
    for (size_t i = 0; i < COUNT_OF(prefixes); i++)
        if (strncmp(cause, prefixes[i], strlen(prefixes[i])) == 0)
            cause += strlen(prefixes[i]);
    at = strstr(cause, connect);
    if (at != NULL)
        snprintf(out, n, "connect: %s", at + sizeof(connect) - 1);
    else if (*cause != '\0')
        snprintf(out, n, "%s", cause);
    else
        snprintf(out, n, "gRPC status %d", code);
}
