/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names the limit behind an errno: getrlimit() and the cgroups say which one is low.
 */
#include "numa/limit.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "numa/cgroup.h"

#define TEXT_BYTES 320

static void number(int which, char ret[24])
{
	struct rlimit limit;

	if (getrlimit((__rlimit_resource_t)which, &limit) < 0)
		snprintf(ret, 24, "not known");
	else if (limit.rlim_cur == RLIM_INFINITY)
		snprintf(ret, 24, "unlimited");
	else
		snprintf(ret, 24, "%" PRIu64, (uint64_t)limit.rlim_cur);
}

/* A new thread was refused: by the limit of the user, by a cgroup, or for want of memory. */
static void threads_text(const char *what, char *text)
{
	char limit[24], name[CGROUP_NAME_BYTES], group[CGROUP_NAME_BYTES + 32] = "";
	uint64_t left = 1000000;

	number(RLIMIT_NPROC, limit);
	if (cgroup_left(CGROUP_TASKS, &left, name))
		snprintf(group, sizeof(group), ", %s allows %" PRIu64 " more", name, left);
	snprintf(text, TEXT_BYTES,
		"%s: no further thread (RLIMIT_NPROC is %s%s); raise ulimit -u, LimitNPROC= or TasksMax=",
		what, limit, group);
}

const char *limit_error(int error)
{
	static _Thread_local char text[TEXT_BYTES];
	const char *what = strerror(abs(error));
	char limit[24];

	switch (abs(error)) {
	case EAGAIN: threads_text(what, text); break;
	case EFBIG:
		number(RLIMIT_FSIZE, limit);
		snprintf(text, sizeof(text),
			"%s: RLIMIT_FSIZE is %s bytes; raise ulimit -f or LimitFSIZE=", what,
			limit);
		break;
	case EMFILE:
		number(RLIMIT_NOFILE, limit);
		snprintf(text, sizeof(text),
			"%s: RLIMIT_NOFILE is %s; raise ulimit -n or LimitNOFILE=", what, limit);
		break;
	default: snprintf(text, sizeof(text), "%s", what);
	}
	return text;
}
