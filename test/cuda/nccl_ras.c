/* nccl_ras.c - RAS of the emulated NCCL: the text protocol at NCCL_RAS_ADDR, limited to "TIMEOUT
 * n", "STATUS" and "VERBOSE STATUS". */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/nccl_priv.h"

struct told {
    FILE *out;
    int n;
};

static void write_rank(void *arg, uint32_t rank, uint64_t operation)
{
    struct told *t = arg;

    if (t->n++ == 0)
        fprintf(t->out, "\nErrors\n======\n\n#0-0 (feedbeef) MISMATCH\n"
                        "  Communicator ranks have different collective operation counts\n");
    fprintf(t->out, "  Rank %u -- has launched up to operation %llu\n", rank,
            (unsigned long long)operation);
}

static void answer(FILE *out)
{
    struct told told = { .out = out };
    int v = nccl_version();

    fprintf(out, "NCCL version %d.%d.%d compiled with CUDA 13.0\nCUDA runtime version 13000, driver version %d\n\n"
                 "Job summary\n===========\n\n  Nodes  Processes\n(total)   per node\n      1          2\n",
            v / 10000, v / 100 % 100, v % 100, emulated_settings()->driver);
    nccl_waiting(write_rank, &told);
}

static void *ras_main(void *arg)
{
    int listener = (int)(intptr_t)arg;

    for (;;) {
        int fd = accept(listener, NULL, NULL);
        FILE *f = fd >= 0 ? fdopen(fd, "r+") : NULL;
        char line[64];

        while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
            if (strncmp(line, "TIMEOUT ", 8) == 0) {
                fprintf(f, "OK\n");
                fflush(f);
                continue;
            }
            if (strcmp(line, "STATUS\n") == 0 || strcmp(line, "VERBOSE STATUS\n") == 0)
                answer(f);
            else
                fprintf(f, "ERROR: Unknown command\n");
            break;
        }
        if (f != NULL)
            fclose(f);
    }
    return NULL;
}

static void start(void)
{
    const char *said = getenv("NCCL_RAS_ADDR"), *colon = said != NULL ? strrchr(said, ':') : NULL;
    struct sockaddr_in at = { .sin_family = AF_INET };
    char host[64];
    int fd, on = 1;
    pthread_t thread;

    if (colon == NULL)
        return;
    snprintf(host, sizeof(host), "%.*s", (int)(colon - said), said);
    at.sin_port = htons((uint16_t)atoi(colon + 1));
    if (inet_pton(AF_INET, host, &at.sin_addr) != 1)
        emulated_die("NCCL_RAS_ADDR: '%s', expected an address of IPv4 and a port", said);
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) != 0 || listen(fd, 16) != 0 ||
        pthread_create(&thread, NULL, ras_main, (void *)(intptr_t)fd) != 0)
        emulated_die("NCCL_RAS_ADDR: cannot listen at %s", said);
    pthread_detach(thread);
}

void nccl_ras_start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, start);
}
