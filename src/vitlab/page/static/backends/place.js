// Where models run: "server" as installed; the static export writes "browser" here.
export const where = "server";
