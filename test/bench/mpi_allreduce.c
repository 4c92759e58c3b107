/* mpi_allreduce.c - measures an in-place all-reduce of Open MPI, for comparison with
 * bench_allreduce and timed in the same way: a barrier, then one call; the time of a call is that
 * of its slowest rank; the median over the calls counts.
 *
 *     mpirun -n 2 mpi_allreduce BYTES...
 *
 * Prints a line per size: the bytes and the seconds. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { WARM_CALLS = 10, CALLS_MIN = 15, CALLS_MAX = 2000 };
#define MEASURE_S 0.2 /* approximate time per size */

static double seconds[CALLS_MAX], slowest[CALLS_MAX];

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Returns the median time of a call of its slowest rank; the same on every rank. */
static double median(float *x, int n, int calls)
{
    for (int i = 0; i < calls; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        seconds[i] = -MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, x, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        seconds[i] += MPI_Wtime();
    }
    MPI_Allreduce(seconds, slowest, calls, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    qsort(slowest, (size_t)calls, sizeof(*slowest), by_value);
    return slowest[calls / 2];
}

static void measure(long bytes, int rank)
{
    int n = (int)(bytes / (long)sizeof(float)), calls;
    float *x = malloc((size_t)bytes);
    double wanted;

    if (x == NULL) {
        fprintf(stderr, "mpi_allreduce: out of memory for %ld bytes\n", bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
        return;
    }
    for (int i = 0; i < n; i++)
        x[i] = 0; /* stays zero in repeated sums */
    median(x, n, WARM_CALLS);
    wanted = -MPI_Wtime();
    median(x, n, WARM_CALLS);
    wanted = MEASURE_S * WARM_CALLS / (wanted + MPI_Wtime());
    MPI_Bcast(&wanted, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    calls = wanted < CALLS_MIN ? CALLS_MIN : wanted > CALLS_MAX ? CALLS_MAX : (int)wanted;
    wanted = median(x, n, calls);
    if (rank == 0)
        printf("%ld %.9f\n", bytes, wanted);
    free(x);
}

int main(int argc, char **argv)
{
    int rank;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 1; i < argc; i++) {
        long bytes = strtol(argv[i], NULL, 10);

        if (bytes < (long)sizeof(float) || bytes > 1L << 30) {
            fprintf(stderr, "mpi_allreduce: a size is 4 to 2^30 bytes, found '%s'\n", argv[i]);
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
        measure(bytes, rank);
    }
    MPI_Finalize();
    return 0;
}
