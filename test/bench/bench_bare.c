/* bench_bare.c - the resident memory of the smallest process with a gRPC server and a channel: the lower limit of a
 * task that waits, as long as it releases nothing. Prints VmRSS in KiB. Linked with gRPC alone: the linker leaves out
 * libraries that no symbol needs. */
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/time.h>
#include <stdio.h>

enum { SECONDS = 4 };

static int print_resident(void)
{
    char line[256];
    long kib = 0;
    FILE *f = fopen("/proc/self/status", "re");

    if (f == NULL)
        return 1;
    while (fgets(line, sizeof(line), f) != NULL && sscanf(line, "VmRSS: %ld", &kib) != 1)
        ;
    fclose(f);
    printf("%ld\n", kib);
    return kib > 0 ? 0 : 1;
}

int main(void)
{
    grpc_completion_queue *queue;
    grpc_server *server;
    grpc_channel *channel;

    grpc_init();
    queue = grpc_completion_queue_create_for_next(NULL);
    server = grpc_server_create(NULL, NULL);
    grpc_server_register_completion_queue(server, queue, NULL);
    if (grpc_server_add_http2_port(server, "127.0.0.1:0",
                                   grpc_insecure_server_credentials_create()) == 0)
        return 1;
    grpc_server_start(server);
    /* Port 1 refuses the connection, as the port of an absent task does. */
    channel = grpc_channel_create("127.0.0.1:1", grpc_insecure_credentials_create(), NULL);
    grpc_channel_check_connectivity_state(channel, 1);
    (void)grpc_completion_queue_next(
        queue,
        gpr_time_add(gpr_now(GPR_CLOCK_REALTIME), gpr_time_from_seconds(SECONDS, GPR_TIMESPAN)),
        NULL);               /* nothing arrives */
    return print_resident(); /* without a shutdown: the process ends */
}
