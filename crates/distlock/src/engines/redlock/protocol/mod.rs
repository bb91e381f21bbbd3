pub(crate) mod scripts;
