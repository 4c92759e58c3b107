/* driver.h - main() of a fuzz program, which runs one parser on mutations of known inputs.
 *
 *     fuzz_x [-runs=N] [-seconds=N] [-seed=S] [-accepted=DIR] [corpus files...]
 *
 * Runs every seed and corpus file unchanged, then N / FUZZ_COST mutations of them (default N: 20000), or as many
 * as possible in N seconds. A program whose inputs take long defines FUZZ_COST; the default is 1. The same arguments give
 * the same inputs. An input for which the target calls fuzz_accept() is written to a file in DIR. After a crash, or an
 * input that takes longer than FUZZ_SLOW_S, the input is written to a file whose path is printed. The including program
 * defines LLVMFuzzerTestOneInput() and its seeds, so libFuzzer or AFL can use it too
 * (-DFUZZ_NO_MAIN). With FUZZ_HAS_MUTATOR it also defines LLVMFuzzerCustomMutator(), which replaces
 * the mutations of bytes. */
#ifndef FUZZ_DRIVER_H
#define FUZZ_DRIVER_H

#include <stddef.h>
#include <stdint.h>

struct fuzz_seed {
    const char *data;
    size_t n;
};
/* A string literal as a seed, including its NUL bytes. */
#define FUZZ_SEED(literal_)                                                                        \
    {                                                                                              \
        literal_, sizeof(literal_) - 1                                                             \
    }

extern const struct fuzz_seed fuzz_seeds[];
extern const size_t n_fuzz_seeds;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifdef FUZZ_HAS_MUTATOR
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed);
#endif
/* Writes the current input to a file in the directory -accepted, if it is set. */
static inline void fuzz_accept(void);

#ifdef FUZZ_NO_MAIN
static inline void fuzz_accept(void)
{
}
#else

#ifndef FUZZ_COST
#define FUZZ_COST 1
#endif

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum {
    FUZZ_INPUT_MAX = 1 << 16,  /* bytes; limit of a mutation */
    FUZZ_CORPUS_MAX = 1 << 20, /* bytes; limit of a corpus file */
    FUZZ_SLOW_S = 10,
    FUZZ_STEPS_MAX = 6, /* mutations of one input */
};

static struct {
    const char *name;
    struct fuzz_seed *inputs;
    size_t n_inputs;
    uint64_t random;
    uint64_t run;
    const char *accepted; /* directory; NULL: accepted inputs are not written */
    const uint8_t *data;  /* the current input, for the crash handler */
    size_t n;
} fuzz;

/* xorshift64*: a pseudo-random sequence that is the same on all machines. */
static uint64_t fuzz_random(uint64_t below)
{
    fuzz.random ^= fuzz.random >> 12;
    fuzz.random ^= fuzz.random << 25;
    fuzz.random ^= fuzz.random >> 27;
    return below > 0 ? (fuzz.random * 0x2545f4914f6cdd1du >> 16) % below : 0;
}

static inline void fuzz_accept(void)
{
    char path[512];
    FILE *file;

    if (fuzz.accepted == NULL)
        return;
    snprintf(path, sizeof(path), "%s/%s-%" PRIu64, fuzz.accepted, fuzz.name, fuzz.run);
    file = fopen(path, "wb");
    if (file == NULL || fwrite(fuzz.data, 1, fuzz.n, file) != fuzz.n || fclose(file) != 0) {
        perror(path);
        exit(2);
    }
}

/* Writes the input to a file. Called from a signal handler, so it uses only system calls, and
 * snprintf(), which could at most crash a program that is ending. */
static void fuzz_write_input(const char *why)
{
    char path[256];
    int fd;

    if (fuzz.data == NULL)
        return;
    snprintf(path, sizeof(path), "%s/fuzz_%s-run-%" PRIu64 ".bin",
             getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp", fuzz.name, fuzz.run);
    fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, fuzz.data, fuzz.n) < 0)
        snprintf(path, sizeof(path), "(could not be written)");
    if (fd >= 0)
        close(fd);
    dprintf(STDERR_FILENO, "fuzz %s: run %" PRIu64 ": %s; the input of %zu bytes: %s\n", fuzz.name,
            fuzz.run, why, fuzz.n, path);
}

static void fuzz_on_signal(int number)
{
    fuzz_write_input(number == SIGALRM ? "an input takes far too long" : strsignal(number));
    signal(number, SIG_DFL);
    raise(number);
}

static void fuzz_on_sanitizer(void)
{
    fuzz_write_input("a sanitizer found an error");
}

/* NULL unless the program is built with a sanitizer. */
extern void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void fuzz_watch(void)
{
    static const int signals[] = { SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM };

    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
        bool sanitizer_takes_it = __sanitizer_set_death_callback != NULL && signals[i] != SIGALRM &&
                                  signals[i] != SIGABRT;

        if (!sanitizer_takes_it)
            signal(signals[i], fuzz_on_signal);
    }
    if (__sanitizer_set_death_callback != NULL)
        __sanitizer_set_death_callback(fuzz_on_sanitizer);
}

/* Runs the target on a heap copy of exactly this size, so that a sanitizer detects a read past the
 * end. */
static void fuzz_one(const void *data, size_t n)
{
    uint8_t *copy = malloc(n > 0 ? n : 1);

    if (copy == NULL)
        abort();
    if (n > 0)
        memcpy(copy, data, n);
    fuzz.data = copy;
    fuzz.n = n;
    alarm(FUZZ_SLOW_S);
    (void)LLVMFuzzerTestOneInput(copy, n); /* always 0; other values are reserved */
    alarm(0);
    fuzz.data = NULL;
    free(copy);
    fuzz.run++;
}

#ifdef FUZZ_HAS_MUTATOR
static void fuzz_step(uint8_t *data, size_t *n)
{
    *n = LLVMFuzzerCustomMutator(data, *n, FUZZ_INPUT_MAX, (unsigned)fuzz_random(UINT32_MAX));
}
#else
static void fuzz_flip_bit(uint8_t *data, size_t *n)
{
    if (*n > 0)
        data[fuzz_random(*n)] ^= (uint8_t)(1u << fuzz_random(8));
}

static void fuzz_set_byte(uint8_t *data, size_t *n)
{
    if (*n > 0)
        data[fuzz_random(*n)] = (uint8_t)fuzz_random(256);
}

static void fuzz_truncate(uint8_t *data, size_t *n)
{
    (void)data;
    *n = fuzz_random(*n + 1);
}

/* Opens a gap of `bytes` at `at`; false if it does not fit. */
static bool fuzz_open_gap(uint8_t *data, size_t *n, size_t at, size_t bytes)
{
    if (bytes > FUZZ_INPUT_MAX - *n)
        return false;
    memmove(data + at + bytes, data + at, *n - at);
    *n += bytes;
    return true;
}

static void fuzz_insert_byte(uint8_t *data, size_t *n)
{
    size_t at = fuzz_random(*n + 1);

    if (fuzz_open_gap(data, n, at, 1))
        data[at] = (uint8_t)fuzz_random(256);
}

static void fuzz_erase(uint8_t *data, size_t *n)
{
    size_t at = fuzz_random(*n), bytes;

    if (*n == 0)
        return;
    bytes = 1 + fuzz_random(*n - at < 32 ? *n - at : 32);
    memmove(data + at, data + at + bytes, *n - at - bytes);
    *n -= bytes;
}

/* Repeats a range up to 64 times, for nesting and long runs. */
static void fuzz_repeat(uint8_t *data, size_t *n)
{
    size_t at = fuzz_random(*n), bytes, times = 1 + fuzz_random(64);

    if (*n == 0)
        return;
    bytes = 1 + fuzz_random(*n - at < 16 ? *n - at : 16);
    while (times-- > 0 && fuzz_open_gap(data, n, at + bytes, bytes))
        memcpy(data + at + bytes, data + at, bytes);
}

/* Copies a range of another input over the end of this one, or inserts it. */
static void fuzz_splice(uint8_t *data, size_t *n)
{
    const struct fuzz_seed *other = &fuzz.inputs[fuzz_random(fuzz.n_inputs)];
    size_t from = fuzz_random(other->n), at = fuzz_random(*n + 1), bytes;

    if (other->n == 0)
        return;
    bytes = 1 + fuzz_random(other->n - from);
    if (fuzz_random(2) == 0) {
        if (bytes > FUZZ_INPUT_MAX - at)
            return;
        *n = at + bytes;
    } else if (!fuzz_open_gap(data, n, at, bytes)) {
        return;
    }
    memcpy(data + at, other->data + from, bytes);
}

/* Writes a number at which sizes and offsets overflow, in 1 to 8 bytes and either byte order. */
static void fuzz_set_integer(uint8_t *data, size_t *n)
{
    static const uint64_t edges[] = { 0,          1,          0x7f,       0x80,
                                      0xff,       0x7fff,     0x8000,     0xffff,
                                      0x7fffffff, 0x80000000, 0xffffffff, 0x100000000,
                                      INT64_MAX,  1ull << 63, UINT64_MAX, UINT64_MAX - 7 };
    uint64_t value = edges[fuzz_random(sizeof(edges) / sizeof(edges[0]))];
    size_t bytes = (size_t)1 << fuzz_random(4), at;
    bool big_endian = fuzz_random(2) == 0;

    if (*n < bytes)
        return;
    at = fuzz_random(*n - bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        data[at + (big_endian ? bytes - 1 - i : i)] = (uint8_t)(value >> 8 * i);
}

/* Inserts a decimal number at a random position, for parsers of text. */
static void fuzz_insert_decimal(uint8_t *data, size_t *n)
{
    static const char *const numbers[] = {
        "0",     "-1",  "4294967296", "18446744073709551616", "9223372036854775808",
        "1e999", "0.1", "2147483648"
    };
    const char *number = numbers[fuzz_random(sizeof(numbers) / sizeof(numbers[0]))];
    size_t at = fuzz_random(*n + 1), bytes = strlen(number);

    if (fuzz_open_gap(data, n, at, bytes))
        memcpy(data + at, number, bytes);
}

static void (*const fuzz_mutations[])(uint8_t *data, size_t *n) = {
    fuzz_flip_bit, fuzz_set_byte, fuzz_truncate, fuzz_insert_byte, fuzz_erase,
    fuzz_repeat,   fuzz_splice,   fuzz_splice,   fuzz_set_integer, fuzz_insert_decimal,
};

static void fuzz_step(uint8_t *data, size_t *n)
{
    fuzz_mutations[fuzz_random(sizeof(fuzz_mutations) / sizeof(fuzz_mutations[0]))](data, n);
}
#endif

static void fuzz_mutate(uint8_t *data)
{
    const struct fuzz_seed *input = &fuzz.inputs[fuzz_random(fuzz.n_inputs)];
    size_t n = input->n < FUZZ_INPUT_MAX ? input->n : FUZZ_INPUT_MAX;
    uint64_t steps = 1 + fuzz_random(FUZZ_STEPS_MAX);

    if (n > 0)
        memcpy(data, input->data, n);
    while (steps-- > 0)
        fuzz_step(data, &n);
    fuzz_one(data, n);
}

static void fuzz_add_input(const char *data, size_t n)
{
    struct fuzz_seed *more = realloc(fuzz.inputs, (fuzz.n_inputs + 1) * sizeof(*more));

    if (more == NULL)
        abort();
    fuzz.inputs = more;
    fuzz.inputs[fuzz.n_inputs++] = (struct fuzz_seed){ data, n };
}

static int fuzz_add_file(const char *path, char **out)
{
    FILE *file = fopen(path, "rb");
    char *data;
    size_t n;

    if (file == NULL) {
        perror(path);
        return -1;
    }
    data = malloc(FUZZ_CORPUS_MAX);
    if (data == NULL)
        abort();
    n = fread(data, 1, FUZZ_CORPUS_MAX, file);
    fclose(file);
    fuzz_add_input(data, n);
    *out = data;
    return 0;
}

static bool fuzz_option(const char *arg, const char *name, uint64_t *out)
{
    size_t n = strlen(name);
    char *end;

    if (strncmp(arg, name, n) != 0)
        return false;
    *out = strtoull(arg + n, &end, 10);
    if (arg[n] < '0' || arg[n] > '9' || *end != '\0') {
        fprintf(stderr, "'%s': expected %sNUMBER\n", arg, name);
        exit(2);
    }
    return true;
}

static bool fuzz_text_option(const char *arg, const char *name, const char **out)
{
    size_t n = strlen(name);

    if (strncmp(arg, name, n) != 0)
        return false;
    *out = arg + n;
    return true;
}

static double fuzz_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/');
    uint64_t runs = 20000, seconds = 0, seed = 1;
    double end;
    char **files = calloc((size_t)argc + 1, sizeof(*files));
    uint8_t *scratch = malloc(FUZZ_INPUT_MAX);

    if (files == NULL || scratch == NULL)
        abort();
    fuzz.name = slash != NULL ? slash + 1 : argv[0];
    if (strncmp(fuzz.name, "fuzz_", 5) == 0)
        fuzz.name += 5;
    for (size_t i = 0; i < n_fuzz_seeds; i++)
        fuzz_add_input(fuzz_seeds[i].data, fuzz_seeds[i].n);
    for (int i = 1; i < argc; i++)
        if (!fuzz_option(argv[i], "-runs=", &runs) && !fuzz_option(argv[i], "-seed=", &seed) &&
            !fuzz_option(argv[i], "-seconds=", &seconds) &&
            !fuzz_text_option(argv[i], "-accepted=", &fuzz.accepted) &&
            fuzz_add_file(argv[i], &files[i]) < 0)
            return 2;
    if (fuzz.n_inputs == 0)
        fuzz_add_input("", 0);

    fuzz.random = (seed + 1) * 0x9e3779b97f4a7c15u | 1; /* never 0 */
    fuzz_watch();
    fuzz_one("", 0);
    for (size_t i = 0; i < fuzz.n_inputs; i++)
        fuzz_one(fuzz.inputs[i].data, fuzz.inputs[i].n);
    end = fuzz_now() + (double)seconds;
    for (uint64_t i = 0; seconds > 0 ? i % 64 != 0 || fuzz_now() < end : i < runs / FUZZ_COST; i++)
        fuzz_mutate(scratch);
    printf("fuzz %s: %" PRIu64 " runs, no crash\n", fuzz.name, fuzz.run);

    for (int i = 0; i < argc; i++)
        free(files[i]);
    free(files);
    free(fuzz.inputs);
    free(scratch);
    return 0;
}

#endif /* FUZZ_NO_MAIN */
#endif
