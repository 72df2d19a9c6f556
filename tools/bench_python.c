/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peercache-bench suite and its other commands, and --api python: runs the benchmark of the Python
 * package instead of the C one. It finds the package and the engine of the build tree by their
 * paths relative to the executable. Main thread, before other threads exist.
 */
#include "tools/bench_python.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/common.h"

/* Sets the variable to `folder`/../`path` if that exists, and it is not set yet. */
static void set_path(const char *variable, const char *folder, const char *path)
{
	char found[4352];

	snprintf(found, sizeof(found), "%s/../%s", folder, path);
	if (!access(found, F_OK))
		setenv(variable, found, 0);
}

/* Tells Python where the programs are and, in a build tree, where the package is. */
static void set_paths(void)
{
	const char *before = getenv("PYTHONPATH");
	char path[4096], package[4352], *slash;
	ssize_t got = readlink("/proc/self/exe", path, sizeof(path) - 1);

	path[got > 0 ? got : 0] = '\0';
	slash = strrchr(path, '/');
	if (!slash)
		return;
	setenv("PEERCACHE_BENCH", path, 0);
	*slash = '\0';
	set_path("PEERCACHE_ENGINE", path, "engine/peercache-engine");
	snprintf(package, sizeof(package), "%s/../engine/client/python", path);
	if (access(package, F_OK))
		return; /* an installed program: Python finds an installed package */
	snprintf(package, sizeof(package), "%s/../engine/client/python%s%s", path,
		before ? ":" : "", before ? before : "");
	setenv("PYTHONPATH", package, 1);
}

/*
 * Replaces this process with `python3 -m peercache.bench` and the options, without those of the C
 * program alone.
 */
static void run_python(int argc, char **argv)
{
	const char *python = getenv("PEERCACHE_PYTHON");
	char **args = calloc((size_t)argc + 6, sizeof(*args));
	int n = 0;

	if (!args)
		die("out of memory");
	set_paths();
	args[n++] = python ? (char *)(uintptr_t)python : "python3";
	args[n++] = "-m";
	args[n++] = "peercache.bench";
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--api"))
			i++;
		else if (strcmp(argv[i], "--no-baseline"))
			args[n++] = argv[i];
	}
	execvp(args[0], args);
	die("cannot run %s, which measures as SGLang calls: %s", args[0], strerror(errno));
}

/* Is the command one of the Python program? `--log-level` and `--log-file` may come before it. */
static bool is_command(int argc, char **argv)
{
	static const char *const commands[] = {"latency", "throughput", "saturation", "suite",
		"micro", "compare", "mooncake", "serve", "drive", "served"};
	int at = 1;

	while (at < argc && !strncmp(argv[at], "--log-", 6))
		at += strchr(argv[at], '=') ? 1 : 2;
	for (size_t i = 0; at < argc && i < sizeof(commands) / sizeof(commands[0]); i++)
		if (!strcmp(argv[at], commands[i]))
			return true;
	return false;
}

void bench_python(int argc, char **argv)
{
	if (is_command(argc, argv))
		run_python(argc, argv);
	for (int i = 1; i + 1 < argc; i++) {
		if (strcmp(argv[i], "--api"))
			continue;
		if (!strcmp(argv[i + 1], "python"))
			run_python(argc, argv);
		else if (strcmp(argv[i + 1], "c"))
			die("--api %s: give c or python", argv[i + 1]);
	}
}
