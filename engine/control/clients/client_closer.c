/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closes descriptors that came from other processes, on a thread of its own. A close can block for
 * as long as the sender likes (a socket that lingers, a file of a user-space file system), and the
 * last close of a memfd frees its memory, which takes time. The loop hands descriptors over and
 * never waits.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "config/thread.h"
#include "engine/control/clients/clients_inner.h"

/*
 * time that shutdown waits for the closer's thread; after it the process ends without that thread
 */
#define CLOSER_END_SECONDS 1

struct closer {
	pthread_t thread;
	int in, out; /* ends of a pipe that carries the numbers of the descriptors to close */
};

static void *closer_main(void *context)
{
	struct closer *closer = context;
	int fd;

	while (read(closer->out, &fd, sizeof(fd)) == sizeof(fd))
		close(fd);
	close(closer->out);
	return NULL;
}

int closer_open(struct closer **ret_closer)
{
	struct closer *closer = calloc(1, sizeof(*closer));
	int ends[2], rc;

	if (!closer || pipe2(ends, O_CLOEXEC) < 0) {
		free(closer);
		return -ENOMEM;
	}
	closer->out = ends[0];
	closer->in = ends[1];
	(void)fcntl(closer->in, F_SETFL, O_NONBLOCK);
	rc = thread_start(&closer->thread, closer_main, closer);
	if (rc) {
		close(ends[0]);
		close(ends[1]);
		free(closer);
		return rc;
	}
	*ret_closer = closer;
	return 0;
}

/*
 * If the pipe is full, which takes thousands of descriptors, the loop closes the descriptor itself.
 */
void closer_take(struct closer *closer, int fd)
{
	if (fd >= 0 && write(closer->in, &fd, sizeof(fd)) != sizeof(fd))
		close(fd);
}

void closer_close(struct closer *closer)
{
	struct timespec until;

	if (!closer)
		return;
	close(closer->in);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += CLOSER_END_SECONDS;
	if (pthread_timedjoin_np(closer->thread, NULL, &until) == 0)
		free(closer);
}
