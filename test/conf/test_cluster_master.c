/* test_cluster_master.c - tests where tasks meet that know the address of rank 0 alone. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/err.h"
#include "conf/cluster.h"
#include "conf/cluster_master.h"

struct row {
    const char *id;
    const char *env[8];   /* "NAME=value" */
    const char *expected; /* "HOST PORT rank R of N, control port C", "" if not found, or "!" and an error */
    const char *hosts, *file;
    uint32_t first_port;
};

static const char *env_of(void *arg, const char *name)
{
    const struct row *row = arg;
    size_t n = strlen(name);

    for (size_t i = 0; i < COUNT_OF(row->env) && row->env[i] != NULL; i++)
        if (strncmp(row->env[i], name, n) == 0 && row->env[i][n] == '=')
            return row->env[i] + n + 1;
    return NULL;
}

#define TORCH(rank_, size_, port_) \
    "RANK=" rank_, "WORLD_SIZE=" size_, "MASTER_ADDR=m", "MASTER_PORT=" port_

/* clang-format off */
static const struct row rows[] = {
    { .id = "PyTorchJob", .env = { TORCH("1", "2", "23456") }, "m 23456 rank 1 of 2, control port 23457" },
    { .id = "torchrun", .env = { TORCH("3", "4", "29500"), "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2" },
      "m 29500 rank 3 of 4, control port 29502" },
    { .id = "agent of torchrun at the port", .env = { TORCH("3", "4", "29500"), "LOCAL_RANK=1", "TORCHELASTIC_USE_AGENT_STORE=True" },
      "m 29501 rank 3 of 4, control port 29503" },
    { .id = "agent elsewhere", .env = { TORCH("0", "2", "29500"), "TORCHELASTIC_USE_AGENT_STORE=False" },
      "m 29500 rank 0 of 2, control port 29501" },
    { .id = "--port", .env = { TORCH("3", "4", "29500"), "LOCAL_RANK=1" }, "m 29500 rank 3 of 4, control port 7001", .first_port = 7000 },
    { .id = "all on this host", .env = { TORCH("1", "2", "29500"), "LOCAL_WORLD_SIZE=2" }, "" },
    { .id = "one task", .env = { TORCH("0", "1", "29500") }, "" },
    { .id = "no address", .env = { "RANK=0", "WORLD_SIZE=2", "MASTER_PORT=1" }, "" },
    { .id = "no rank", .env = { "WORLD_SIZE=2", "MASTER_ADDR=m", "MASTER_PORT=1" }, "" },
    { .id = "TF_CONFIG", .env = { TORCH("0", "2", "29500"), "TF_CONFIG={}" }, "" },
    { .id = "empty TF_CONFIG", .env = { TORCH("0", "2", "29500"), "TF_CONFIG=" }, "m 29500 rank 0 of 2, control port 29501" },
    { .id = "--hosts", .env = { TORCH("0", "2", "29500") }, "", .hosts = "a,b" },
    { .id = "--cluster", .env = { TORCH("0", "2", "29500") }, "", .file = "none" },
    { .id = "rank above", .env = { TORCH("2", "2", "29500") }, "!RANK='2': expected a number below WORLD_SIZE" },
    { .id = "rank is no number", .env = { TORCH("-1", "2", "29500") }, "!RANK='-1': expected a number below WORLD_SIZE" },
    { .id = "port is no number", .env = { TORCH("0", "2", "http") }, "!MASTER_PORT='http': expected a port" },
    { .id = "port 0", .env = { TORCH("0", "2", "0") }, "!MASTER_PORT='0': expected a port" },
    { .id = "last port", .env = { TORCH("0", "2", "65535") }, "!MASTER_PORT='65535': expected a lower port" },
    { .id = "last port, agent", .env = { TORCH("0", "2", "65535"), "TORCHELASTIC_USE_AGENT_STORE=True" }, "!MASTER_PORT='65535': expected a port" },
    { .id = "local rank", .env = { TORCH("0", "2", "29500"), "LOCAL_RANK=x" }, "!LOCAL_RANK='x': expected a number below WORLD_SIZE" },
    { .id = "too many", .env = { TORCH("0", "4097", "29500") }, "!WORLD_SIZE='4097': expected at most 4096 tasks" },
};
/* clang-format on */

static void environment_with_the_address_of_rank_0_names_the_meeting(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const struct row *row = &rows[i];
        struct cluster_opts o = { .env = env_of, .env_arg = (void *)(uintptr_t)row, .hosts = row->hosts,
                                  .cluster_file = row->file, .first_port = row->first_port };
        struct cluster_master m = { .host = "" };
        char text[ERR_TEXT_BYTES + 2] = "";
        bool found = true;
        struct err err;

        if (cluster_master_find(&o, &m, &found, &err) < 0)
            snprintf(text, sizeof(text), "!%s", err.text);
        else if (found)
            snprintf(text, sizeof(text), "%s %u rank %u of %u, control port %u", m.host, m.port,
                     m.rank, m.size, m.control_port);
        if (strncmp(text, row->expected,
                    row->expected[0] == '!' ? strlen(row->expected) : sizeof(text)) != 0)
            fail_msg("%s: expected '%s', found '%s'", row->id, row->expected, text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(environment_with_the_address_of_rank_0_names_the_meeting),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
