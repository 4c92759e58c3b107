/* fault.c - the armed faults are in a small table under a mutex; a thread that passes a fault point
 * reads the table only if `state` is not OFF. */
#include "base/fault.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/err.h"
#include "base/text.h"

enum { SPEC_MAX = 16, NAME_BYTES = 64, PATH_BYTES = 256 };
enum { SPEC_BYTES = 2 * NAME_BYTES + PATH_BYTES, DELAY_MS_MAX = 3600 * 1000, WAIT_MS = 2 };

/* The exit code of a temporary failure, after which a supervisor restarts the process. */
enum { EXIT_CODE = 138 };

enum action { FAIL, EXIT, KILL, STOP, DELAY, HANG, HOLD, TOUCH, WAIT };

static const struct {
    const char *name;
    enum action action;
} actions[] = { { "fail", FAIL }, { "exit", EXIT },   { "kill", KILL },
                { "stop", STOP }, { "delay", DELAY }, { "hang", HANG }, { "hold", HOLD },
                { "touch", TOUCH }, { "wait", WAIT } };

struct spec {
    char name[NAME_BYTES]; /* of the fault point; "*": any point */
    enum action action;
    uint64_t delay_ms;
    char path[PATH_BYTES]; /* TOUCH: the file to create; WAIT: the file that ends the wait */
    uint64_t first, last; /* the passages that fire, from 1 */
    uint64_t passed;      /* passages so far */
    uint64_t armed;       /* `n_armed` after it was armed */
};

enum { UNREAD, OFF, ON }; /* UNREAD: TRAINERD_FAULT is not parsed yet */
static atomic_int state = UNREAD;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the rest */
static struct spec specs[SPEC_MAX];
static size_t n_specs;
static uint64_t n_passed, n_armed; /* n_armed: successful calls of arm_locked() */
static pthread_cond_t armed = PTHREAD_COND_INITIALIZER; /* n_armed has changed */
static bool fired;

static int bad_spec(struct err *err, const char *text, const char *why)
{
    return err_set(err, ERR_INPUT,
                   "fault '%s': %s; expected name[=action][@n[+|-m]] with action fail, exit, kill, "
                   "stop, delay:MS, touch:FILE, wait:FILE, hang or hold",
                   text, why);
}

static int parse_action(const char *text, const char *word, struct spec *out, struct err *err)
{
    char name[NAME_BYTES];
    size_t n = strcspn(word, ":");
    bool takes_file;

    snprintf(name, sizeof(name), "%.*s", (int)n, word);
    for (size_t i = 0; i < COUNT_OF(actions); i++) {
        if (strcmp(actions[i].name, name) != 0)
            continue;
        out->action = actions[i].action;
        takes_file = out->action == TOUCH || out->action == WAIT;
        if ((word[n] == ':') != (out->action == DELAY || takes_file))
            return bad_spec(
                err, text,
                "delay takes milliseconds, touch and wait a file, other actions nothing");
        if (out->action == DELAY && !text_u64(word + n + 1, DELAY_MS_MAX, &out->delay_ms))
            return bad_spec(err, text, "a delay is a number of milliseconds up to 3600000");
        if (takes_file && (word[n + 1] == '\0' || strlen(word + n + 1) >= PATH_BYTES))
            return bad_spec(err, text, "the path of a file has 1 to 255 characters");
        if (takes_file)
            strcpy(out->path, word + n + 1);
        return 0;
    }
    return bad_spec(err, text, "unknown action");
}

/* Parses the passages after @: n, n+ or n-m. */
static bool parse_passages(char *text, struct spec *out)
{
    char *rest = text + strcspn(text, "+-"), kind = *rest;

    *rest = '\0';
    if (!text_u64(text, UINT64_MAX, &out->first) || out->first == 0)
        return false;
    out->last = kind == '+' ? UINT64_MAX : out->first;
    if (kind == '-' && !text_u64(rest + 1, UINT64_MAX, &out->last))
        return false;
    return out->last >= out->first && (kind != '+' || rest[1] == '\0');
}

/* Parses `text` from its end: the passages, then =action; the rest is the name. */
static int parse_spec(const char *text, struct spec *out, struct err *err)
{
    char copy[SPEC_BYTES], *at, *word;

    if (strlen(text) >= sizeof(copy))
        return bad_spec(err, text, "too long");
    strcpy(copy, text);
    *out = (struct spec){ .action = FAIL, .first = 1, .last = 1 };
    at = strrchr(copy, '@');
    if (at != NULL) {
        *at++ = '\0';
        if (!parse_passages(at, out))
            return bad_spec(err, text, "the passages after @ are numbers from 1: n, n+ or n-m");
    }
    word = strchr(copy, '=');
    if (word != NULL) {
        *word++ = '\0';
        if (parse_action(text, word, out, err) < 0)
            return ERR_INPUT;
    }
    if (copy[0] == '\0' || strlen(copy) >= NAME_BYTES)
        return bad_spec(err, text, "a name has 1 to 63 characters");
    strcpy(out->name, copy);
    return 0;
}

static int parse_list(const char *list, struct spec out[SPEC_MAX], size_t *n_out, struct err *err)
{
    char one[SPEC_BYTES + 1];
    size_t n = 0;

    for (;;) {
        size_t length = strcspn(list, ",");

        if (n == SPEC_MAX)
            return bad_spec(err, list, "more than 16 faults");
        snprintf(one, sizeof(one), "%.*s", (int)(length < sizeof(one) ? length : sizeof(one)),
                 list);
        if (parse_spec(one, &out[n], err) < 0)
            return ERR_INPUT;
        n++;
        if (list[length] == '\0')
            break;
        list += length + 1;
    }
    *n_out = n;
    return 0;
}

/* Caller holds the lock. */
static int arm_locked(const char *list, struct err *err)
{
    struct spec parsed[SPEC_MAX];
    size_t n = 0;

    if (list != NULL && parse_list(list, parsed, &n, err) < 0)
        return ERR_INPUT;
    n_armed++;
    for (size_t i = 0; i < n; i++)
        parsed[i].armed = n_armed;
    memcpy(specs, parsed, n * sizeof(*specs));
    n_specs = n;
    n_passed = 0;
    pthread_cond_broadcast(&armed);
    fired = false;
    atomic_store_explicit(&state, n > 0 ? ON : OFF, memory_order_relaxed);
    return 0;
}

/* Caller holds the lock. Exits on an invalid TRAINERD_FAULT: no caller handles the error, and a
 * test whose fault is not armed would pass without testing anything. */
static void arm_from_environment(void)
{
    const char *list = getenv("TRAINERD_FAULT");
    struct err err;

    if (arm_locked(list != NULL && list[0] != '\0' ? list : NULL, &err) == 0)
        return;
    dprintf(STDERR_FILENO, "TRAINERD_FAULT: %s\n", err.text);
    _exit(2);
}

static void sleep_ms(uint64_t ms)
{
    struct timespec left = { .tv_sec = (time_t)(ms / 1000),
                             .tv_nsec = (long)(ms % 1000) * 1000000 };

    while (nanosleep(&left, &left) < 0)
        ;
}

/* Returns after the next fault_arm(). */
static void hold(uint64_t since)
{
    pthread_mutex_lock(&lock);
    while (n_armed == since)
        pthread_cond_wait(&armed, &lock);
    pthread_mutex_unlock(&lock);
}

static bool perform(const struct spec *spec)
{
    switch (spec->action) {
    case FAIL:
        return true;
    case EXIT:
        _exit(EXIT_CODE);
    case KILL:
        kill(getpid(), SIGKILL);
        break;
    case STOP:
        kill(getpid(), SIGSTOP);
        break;
    case DELAY:
        sleep_ms(spec->delay_ms);
        break;
    case HANG:
        for (;;)
            pause();
    case TOUCH:
        close(open(spec->path, O_CREAT | O_WRONLY | O_CLOEXEC, 0644));
        break;
    case WAIT:
        while (access(spec->path, F_OK) != 0)
            sleep_ms(WAIT_MS);
        break;
    case HOLD:
        hold(spec->armed);
        break;
    }
    return false;
}

static bool hit_armed(const char *name)
{
    struct spec due[SPEC_MAX]; /* copies, because the actions run without the lock */
    size_t n_due = 0;
    bool fail = false;

    pthread_mutex_lock(&lock);
    if (atomic_load_explicit(&state, memory_order_relaxed) == UNREAD)
        arm_from_environment();
    n_passed += n_specs > 0;
    for (size_t i = 0; i < n_specs; i++) {
        struct spec *s = &specs[i];

        if (strcmp(s->name, "*") != 0 && strcmp(s->name, name) != 0)
            continue;
        s->passed++;
        if (s->passed >= s->first && s->passed <= s->last)
            due[n_due++] = *s;
    }
    fired = fired || n_due > 0;
    pthread_mutex_unlock(&lock);
    for (size_t i = 0; i < n_due; i++)
        fail = perform(&due[i]) || fail;
    return fail;
}

bool fault_hit(const char *name)
{
    if (__builtin_expect(atomic_load_explicit(&state, memory_order_relaxed) == OFF, 1))
        return false;
    return hit_armed(name);
}

int fault_error(const char *name, struct err *err)
{
    return fault_hit(name) ? err_set(err, ERR_DEVICE, "fault point %s", name) : 0;
}

int fault_arm(const char *spec, struct err *err)
{
    int rc;

    pthread_mutex_lock(&lock);
    rc = arm_locked(spec, err);
    pthread_mutex_unlock(&lock);
    return rc;
}

uint64_t fault_n_passages(void)
{
    uint64_t n;

    pthread_mutex_lock(&lock);
    n = n_passed;
    pthread_mutex_unlock(&lock);
    return n;
}

bool fault_fired(void)
{
    bool yes;

    pthread_mutex_lock(&lock);
    yes = fired;
    pthread_mutex_unlock(&lock);
    return yes;
}
