-- name: applied_migrations
SELECT number, name, checksum FROM migration ORDER BY number;

-- name: record_migration
INSERT INTO migration (number, name, checksum, applied_at) VALUES (:number, :name, :checksum, :applied_at);
