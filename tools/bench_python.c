/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercache-bench --api python: runs the benchmark of the Python package instead of the C one. It
 * finds the package of the build tree by its path relative to the executable. Main thread, before
 * other threads exist.
 */
#include "tools/bench_python.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/common.h"

/* Replaces this process with `python3 -m peercache.bench` and the remaining options. */
static void run_python(int argc, char **argv)
{
	char path[4096], package[4352], *slash;
	const char *before = getenv("PYTHONPATH");
	ssize_t got = readlink("/proc/self/exe", path, sizeof(path) - 1);
	char **args = calloc((size_t)argc + 6, sizeof(*args));
	int n = 0;

	if (!args)
		die("out of memory");
	path[got > 0 ? got : 0] = '\0';
	slash = strrchr(path, '/');
	if (slash) {
		*slash = '\0';
		snprintf(package, sizeof(package), "%s/../engine/client/python%s%s", path,
			before ? ":" : "", before ? before : "");
		setenv("PYTHONPATH", package, 1);
	}
	args[n++] = "python3";
	args[n++] = "-m";
	args[n++] = "peercache.bench";
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--api"))
			i++;
		else if (strcmp(argv[i], "--no-baseline"))
			args[n++] = argv[i];
	}
	execvp(args[0], args);
	die("--api python: cannot run python3: %s", strerror(errno));
}

void bench_python(int argc, char **argv)
{
	for (int i = 1; i + 1 < argc; i++) {
		if (strcmp(argv[i], "--api"))
			continue;
		if (!strcmp(argv[i + 1], "python"))
			run_python(argc, argv);
		else if (strcmp(argv[i + 1], "c"))
			die("--api %s: give c or python", argv[i + 1]);
	}
}
