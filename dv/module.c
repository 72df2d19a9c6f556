/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads the verbs module: the implementation on libibverbs and mlx5dv, and with it these libraries.
 * So a host without them runs the engine with software NICs. The module stays loaded until the
 * process ends. Any thread, on the slow path only.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "dv/module.h"

#ifdef VERBS_FOLDER

#define MODULE_NAME "peercache-verbs.so"
#define PATH_BYTES 4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct dv_ops *loaded; /* protected by `lock` */

/* The folders of the module, relative to that of the program: in a build, then as installed. */
static const char *const folders[] = {".", VERBS_FOLDER};

/* Stores the path of the module. */
static int module_find(char *path, size_t bytes)
{
	char program[PATH_BYTES];
	ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
	char *end;

	if (length < 0)
		return dv_fail(-errno, "/proc/self/exe: %m. RDMA needs /proc mounted");
	program[length] = '\0';
	end = strrchr(program, '/');
	if (!end)
		return dv_fail(-ENOENT, "the program's path %.100s has no folder", program);
	*end = '\0';
	for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
		int used = snprintf(path, bytes, "%s/%s/" MODULE_NAME, program, folders[i]);

		if (used > 0 && (size_t)used < bytes && access(path, R_OK) == 0)
			return 0;
	}
	return dv_fail(-ENOENT,
		"%.100s/%s/" MODULE_NAME
		" is missing, which RDMA needs: install the package peercache-engine-verbs, or PeerCache engine again",
		program, VERBS_FOLDER);
}

static int module_load(void)
{
	char path[2 * PATH_BYTES];
	const struct dv_module *module;
	void *library;
	int rc = module_find(path, sizeof(path));

	if (rc)
		return rc;
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!library) {
		const char *why = dlerror();

		return dv_fail(-ELIBACC,
			"%.120s. RDMA needs Debian's packages libibverbs1 and ibverbs-providers, or the like",
			why ? why : path);
	}
	module = dlsym(library, DV_MODULE_NAME);
	if (module && module->bytes == sizeof(*module) &&
		strncmp(module->build, DV_BUILD, sizeof(module->build)) == 0) {
		loaded = module->ops;
		return 0;
	}
	/* every build has a text there; of a table of another size at most 27 bytes are read */
	rc = dv_fail(-ELIBBAD,
		"%.120s is of build %.*s, this program of build " DV_BUILD
		": install PeerCache engine again",
		path, module && module->bytes == sizeof(*module) ? 59 : 27,
		module ? module->build : "unknown");
	dlclose(library);
	return rc;
}

const struct dv_ops *dv_verbs(void)
{
	const struct dv_ops *ops;

	pthread_mutex_lock(&lock);
	ops = loaded || module_load() == 0 ? loaded : NULL;
	pthread_mutex_unlock(&lock);
	return ops;
}

#else

const struct dv_ops *dv_verbs(void)
{
	dv_fail(-ENOTSUP, "this engine was built without RDMA (-Dverbs=disabled)");
	return NULL;
}

#endif
